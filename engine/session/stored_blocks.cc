#include "engine/session/stored_blocks.h"

#include <algorithm>
#include <utility>

#include "base/logging.h"
#include "engine/session/session_keys.h"
#include "engine/store/state_key.h"

namespace polysketch {
namespace {

// Float32 values of a new group at most, but for a block that has more: memory that its encoding
// takes, and far below what an entry of Redis may have.
constexpr size_t kGroupBytes = size_t{64} << 20;

// The error of writing an entry that nothing names yet: no change of the session.
Status NotWritten(const Status& status) {
  return IsOutcomeUnknown(status) ? Unavailable(status.message()) : status;
}

}  // namespace

ByteBuffer BlockEntries::SplitAgainst(const SavedState& state, std::vector<BlockGroup>* groups,
                                      std::vector<ByteBuffer>* added) const {
  const StateLayout& layout = codec_.layout;
  const auto most = static_cast<int64_t>(std::max<size_t>(kGroupBytes / layout.block_bytes(), 1));
  while (true) {
    // All of `groups` are expected to be the state's; new ones have the blocks that are left.
    const size_t known = groups->size();
    std::vector<int64_t> blocks = BlocksOfEach(*groups);
    int64_t left = layout.FullBlocks(state.position) - CountBlocks(*groups);
    for (; left > 0; left -= blocks.back()) blocks.push_back(std::min(left, most));
    std::vector<ContentHasher> hashers(known);
    added->assign(blocks.size() - known, {});
    for (size_t i = known; i < blocks.size(); ++i) {
      (*added)[i - known].reserve(static_cast<size_t>(blocks[i]) * layout.block_bytes());
    }
    ByteBuffer rest;
    rest.reserve(layout.RestBytes(state.position));
    layout.Split(state, blocks, [&](size_t group, std::span<const uint8_t> values) {
      if (group < known) {
        KeptValues(values, codec_.encoding,
                   [&](std::string_view kept) { hashers[group].Add(kept); });
        return;
      }
      ByteBuffer& buffer = group < blocks.size() ? (*added)[group - known] : rest;
      buffer.insert(buffer.end(), values.begin(), values.end());
    });
    size_t same = 0;
    while (same < known && hashers[same].Hash() == (*groups)[same].hash) ++same;
    groups->resize(same);
    if (same < known) continue;
    for (size_t i = known; i < blocks.size(); ++i) {
      groups->push_back(
          {.id = {RandomWord(), RandomWord()}, .blocks = blocks[i], .encoding = codec_.encoding});
    }
    return rest;
  }
}

Result<BlockEntries::Written> BlockEntries::Write(const SavedState& state,
                                                  const StoredBlocks& before,
                                                  std::chrono::milliseconds ttl,
                                                  std::chrono::steady_clock::time_point now) {
  Written written;
  written.blocks = {0, {}, before.touched};
  std::vector<BlockGroup>& groups = written.blocks.groups;
  int64_t left = codec_.layout.FullBlocks(state.position);
  for (const BlockGroup& group : before.groups) {
    if (group.blocks > left || group.encoding != codec_.encoding) break;
    groups.push_back(group);
    left -= group.blocks;
  }
  PS_RETURN_IF_ERROR(Touch(&written.blocks, ttl, now));
  std::vector<ByteBuffer> values;
  written.rest = SplitAgainst(state, &groups, &values);
  const size_t kept = groups.size() - values.size();
  if (kept == 0) written.blocks.touched = now;

  for (size_t i = kept; i < groups.size(); ++i) {
    const ByteBuffer block_values = std::move(values[i - kept]);
    std::string bytes;
    EncodeState([&](const StateWriter& write) { write(block_values); }, block_values.size(),
                codec_.encoding, &bytes);
    ContentHasher hasher;
    KeptValues(block_values, codec_.encoding, [&](std::string_view part) { hasher.Add(part); });
    groups[i].hash = hasher.Hash();
    groups[i].bytes = std::ssize(bytes);
    written.added.push_back(groups[i]);
    const auto put =
        store_->Put(tenant_, BlocksKey(HashText(groups[i].id)), std::move(bytes), 2 * ttl);
    if (put.ok()) continue;
    Delete(written.added);
    return NotWritten(put.status());
  }
  return written;
}

Result<ByteBuffer> BlockEntries::Read(const BlockGroup& group, bool* missing) {
  const std::string key = BlocksKey(HashText(group.id));
  Result<StateStore::Entry> entry = store_->Get(tenant_, key);
  if (entry.status().code() == Code::kNotFound) {
    *missing = true;
    return DataLoss("session: the store does not hold ", key, ", which has blocks of the state");
  }
  if (!entry.ok()) return entry.status();
  if (std::ssize(entry->bytes) != group.bytes) {
    return DataLoss("session: ", key, ": expected ", group.bytes, " bytes, found ",
                    entry->bytes.size());
  }
  return std::move(entry->bytes);
}

Status BlockEntries::Touch(StoredBlocks* blocks, std::chrono::milliseconds ttl,
                           std::chrono::steady_clock::time_point now) {
  std::vector<BlockGroup>& groups = blocks->groups;
  if (groups.empty() || (blocks->touched.has_value() && now - *blocks->touched < ttl / 2)) {
    return Status();
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    const Status status = store_->Touch(tenant_, BlocksKey(HashText(groups[i].id)), 2 * ttl);
    if (status.code() == Code::kNotFound) {
      groups.resize(i);
      break;
    }
    if (!status.ok()) return NotWritten(status);
  }
  blocks->touched = now;
  return Status();
}

void BlockEntries::Delete(const std::vector<BlockGroup>& groups,
                          const std::vector<BlockGroup>& kept) {
  for (const BlockGroup& group : groups) {
    if (std::ranges::find(kept, group.id, &BlockGroup::id) != kept.end()) continue;
    const Status status = store_->Delete(tenant_, BlocksKey(HashText(group.id)));
    if (status.ok() || status.code() == Code::kNotFound) continue;
    LogWarning("state_store_failed", {{"operation", "delete"}, {"why", status.message()}});
  }
}

}  // namespace polysketch
