// Snapshots, session records and headers of stored entries: an error, or an object that encodes to
// bytes that decode to the same object.
//
// The last byte says what the rest is, and what is corrected before it is decoded: an attacker
// knows how to compute checksums.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "engine/session/session_record.h"
#include "engine/snapshot/content_hash.h"
#include "engine/snapshot/snapshot_file.h"
#include "engine/store/stored_header.h"
#include "tests/fuzz/fuzz.h"

namespace polysketch {
namespace {

constexpr int kVocabulary = 258;
constexpr size_t kMaxStateBytes = 4096;

// docs/snapshot-format.md.
constexpr size_t kHeaderBytes = 32;
constexpr size_t kEntryBytes = 40;
constexpr size_t kSessionHeadBytes = 49, kBlocksHeadBytes = 57;
constexpr uint8_t kHasBlocks = 4;

// A layer that grows, in blocks of 8 tokens of 64 bytes.
std::vector<AttentionSpec> GrowingLayers() {
  AttentionSpec layer;
  layer.kind = AttentionKind::kSoftmax;
  layer.heads = 2;
  layer.head_dim = 4;
  layer.block = 8;
  return {layer};
}

const SnapshotCodec& Codec() {
  static const SnapshotCodec codec = {
      .binding = {.model = {}, .tokenizer = {}, .numerics = "fuzz"},
      .limits = {.tokens = {kVocabulary, 4096, true}, .max_state_bytes = kMaxStateBytes},
      .encoding = StateEncoding::kF32,
      .layout = StateLayout(GrowingLayers(), /*block_order=*/false)};
  return codec;
}

template <typename T>
T Get(const std::string& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}
template <typename T>
void Set(std::string* bytes, size_t offset, T value) {
  std::memcpy(bytes->data() + offset, &value, sizeof(value));
}
uint64_t Checksum(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

// Computes the sizes of the sections (`sizes`: also their offsets and the size of the file) and all
// checksums of a snapshot anew.
std::string Corrected(std::string file, bool sizes) {
  if (file.size() < kHeaderBytes) return file;
  const uint64_t count = std::min<uint64_t>(Get<uint32_t>(file, 12), 4);
  const size_t table = kHeaderBytes + count * kEntryBytes;
  if (table > file.size()) return file;
  if (sizes) Set(&file, 16, uint64_t{file.size()});
  uint64_t next = table;
  for (uint64_t i = 0; i < count; ++i) {
    const size_t entry = kHeaderBytes + i * kEntryBytes;
    const uint64_t left = file.size() - next;
    if (sizes) {
      const uint64_t size = i + 1 == count ? left : std::min(Get<uint64_t>(file, entry + 16), left);
      Set(&file, entry + 8, next);
      Set(&file, entry + 16, size);
    }
    const auto size = Get<uint64_t>(file, entry + 16);
    if (Get<uint64_t>(file, entry + 8) != next || size > left) break;
    Set(&file, entry + 32, Checksum({file.data() + next, size}));
    next += size;
  }
  Set(&file, 24, Checksum(file.substr(0, 24) + file.substr(kHeaderBytes, table - kHeaderBytes)));
  return file;
}

void CheckEqual(const Snapshot& a, const Snapshot& b) {
  PS_CHECK(a.position() == b.position());
  PS_CHECK(a.pending == b.pending && a.history == b.history);
  // NaN, which is accepted nowhere, would make this fail.
  PS_CHECK(a.generation == b.generation);
  PS_CHECK((a.state == nullptr) == (b.state == nullptr));
  if (a.state != nullptr) PS_CHECK(a.state->bytes == b.state->bytes);
}

void CheckAccepted(const Snapshot& snapshot) {
  PS_CHECK(!snapshot.pending.empty());
  for (const int32_t token : snapshot.pending) PS_CHECK(token >= 0 && token < kVocabulary);
  if (snapshot.state != nullptr) PS_CHECK(snapshot.state->bytes.size() <= kMaxStateBytes);
  for (const StateEncoding encoding : {StateEncoding::kF32, StateEncoding::kF32Zstd}) {
    const auto again = DecodeSnapshot(EncodeSnapshot(snapshot, Codec().binding, encoding),
                                      Codec().binding, Codec().limits);
    PS_CHECK(again.ok()) << again.status().ToString();
    CheckEqual(snapshot, *again);
  }
}

void CheckSnapshotBytes(const std::string& bytes) {
  const auto decoded = DecodeSnapshot(bytes, Codec().binding, Codec().limits);
  if (decoded.ok()) return CheckAccepted(*decoded);
  fuzz::CheckError(decoded.status());
  PS_CHECK(decoded.status().message().size() <= fuzz::kMaxGrpcError);
}

void CheckSessionBytes(std::string bytes, bool correct, bool sizes) {
  // What the store holds of each group of blocks: zeros.
  const BlockReader reader = {&Codec().layout, [](const BlockGroup& group) -> Result<ByteBuffer> {
                                if (group.bytes > static_cast<int64_t>(kMaxStateBytes)) {
                                  return DataLoss("an entry of other bytes");
                                }
                                ByteBuffer zeros(static_cast<size_t>(group.bytes));
                                std::fill(zeros.begin(), zeros.end(), uint8_t{0});
                                return zeros;
                              }};
  const bool has_blocks =
      bytes.size() >= kBlocksHeadBytes && (static_cast<uint8_t>(bytes[8]) & kHasBlocks) != 0;
  const size_t head_bytes = has_blocks ? kBlocksHeadBytes : kSessionHeadBytes;
  if (correct && bytes.size() >= head_bytes) {
    const size_t covered = head_bytes - sizeof(ContentHash);
    const ContentHash hash = HashContent(std::string_view(bytes).substr(0, covered));
    std::memcpy(bytes.data() + covered, hash.data(), sizeof(hash));
    bytes = bytes.substr(0, head_bytes) + Corrected(bytes.substr(head_bytes), sizes);
  }
  const auto head = DecodeSessionHead(std::string_view(bytes).substr(0, kStoredHeadBytes));
  const auto record = DecodeSession(bytes, Codec(), &reader);
  if (!head.ok()) {
    PS_CHECK(!record.ok());
    return fuzz::CheckError(head.status());
  }
  if (!record.ok()) return fuzz::CheckError(record.status());
  PS_CHECK(head->ttl == record->head.ttl && head->tokens == record->head.tokens);
  PS_CHECK(head->ttl.count() >= 0 && head->created.time_since_epoch().count() >= 0);
  ByteBuffer rest;
  if (!record->groups.empty()) {
    const std::vector<int64_t> groups = BlocksOfEach(record->groups);
    Codec().layout.Split(*record->snapshot->state, groups,
                         [&](size_t group, std::span<const uint8_t> values) {
                           if (group < groups.size()) return;
                           rest.insert(rest.end(), values.begin(), values.end());
                         });
  }
  const auto again = DecodeSession(
      EncodeSession(*record, Codec(), record->groups.empty() ? nullptr : &rest), Codec(), &reader);
  PS_CHECK(again.ok()) << again.status().ToString();
  PS_CHECK(again->head.created == record->head.created);
  if (record->snapshot != nullptr) CheckEqual(*record->snapshot, *again->snapshot);
}

void CheckStoredHeader(const std::string& bytes) {
  const auto info =
      ReadStoredHeader("key", std::string_view(bytes).substr(0, kStoredBeginningBytes),
                       static_cast<int64_t>(bytes.size()));
  if (!info.ok()) return fuzz::CheckError(info.status());
  PS_CHECK(info->bytes == static_cast<int64_t>(bytes.size() - kStoredHeaderBytes));
  PS_CHECK(info->head == bytes.substr(kStoredHeaderBytes, kStoredHeadBytes));
}

}  // namespace
}  // namespace polysketch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace polysketch;
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data), size - 1);
  const uint8_t form = data[size - 1];
  const bool correct = (form & 1) != 0, sizes = (form & 2) != 0;
  switch (form >> 2 & 3) {
    case 0:
    case 1:
      CheckSnapshotBytes(correct ? Corrected(bytes, sizes) : bytes);
      break;
    case 2:
      CheckSessionBytes(bytes, correct, sizes);
      break;
    default:
      CheckStoredHeader(bytes);
  }
  return 0;
}
