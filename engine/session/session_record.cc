#include "engine/session/session_record.h"

#include <limits>

#include "base/check.h"
#include "engine/snapshot/fields.h"
#include "engine/store/state_store.h"

namespace polysketch {
namespace {

using std::chrono::milliseconds;
using std::chrono::system_clock;

constexpr std::string_view kRecordMagic = "PSKSESS2";
constexpr size_t kHeadBytes = 8 + 1 + 8 + 8 + 8 + sizeof(ContentHash);
constexpr size_t kBlocksHeadBytes = kHeadBytes + 8;  // with SessionHead::block_bytes
static_assert(kBlocksHeadBytes <= kStoredHeadBytes);
// Bits of the first byte.
constexpr uint8_t kDurable = 1;
constexpr uint8_t kEvictable = 2;
constexpr uint8_t kHasBlocks = 4;

size_t HeadBytes(const SessionHead& head) {
  return head.block_bytes > 0 ? kBlocksHeadBytes : kHeadBytes;
}

}  // namespace

Result<std::shared_ptr<const Snapshot>> SnapshotCodec::Decode(std::string_view bytes,
                                                              const BlockReader* blocks) const {
  PS_ASSIGN_OR_RETURN(Snapshot snapshot, DecodeSnapshot(bytes, binding, limits, blocks));
  return std::make_shared<const Snapshot>(std::move(snapshot));
}

std::string EncodeSession(const SessionRecord& record, const SnapshotCodec& codec,
                          const ByteBuffer* rest) {
  const SessionHead& head = record.head;
  PS_CHECK(head.tokens == (record.snapshot == nullptr ? 0 : record.snapshot->tokens()));
  FieldWriter fields(kRecordMagic);
  const int64_t block_bytes = CountBytes(record.groups);
  PS_CHECK((rest != nullptr) == (block_bytes > 0));
  const auto keep =
      static_cast<uint8_t>((head.durable ? kDurable : 0) | (head.evictable ? kEvictable : 0) |
                           (block_bytes > 0 ? kHasBlocks : 0));
  fields(keep, int64_t{head.ttl.count()},
         int64_t{std::chrono::duration_cast<milliseconds>(head.created.time_since_epoch()).count()},
         head.tokens);
  if (block_bytes > 0) fields(block_bytes);
  std::string bytes = std::move(fields).Take();
  FieldWriter checksum;
  checksum(HashContent(bytes));
  bytes += std::move(checksum).Take();
  if (rest != nullptr) {
    bytes += EncodeSnapshot(*record.snapshot, codec.binding, codec.encoding, *rest, record.groups);
  } else if (record.snapshot != nullptr) {
    bytes += codec.Encode(*record.snapshot);
  }
  return bytes;
}

Result<SessionHead> DecodeSessionHead(std::string_view bytes) {
  if (bytes.size() < kHeadBytes || !bytes.starts_with(kRecordMagic)) {
    return DataLoss("session: expected the record of one, found ", bytes.size(),
                    " bytes of something else");
  }
  const bool has_blocks = (static_cast<uint8_t>(bytes[kRecordMagic.size()]) & kHasBlocks) != 0;
  const size_t size = has_blocks ? kBlocksHeadBytes : kHeadBytes;
  FieldReader fields(bytes.substr(kRecordMagic.size(), size - kRecordMagic.size()));
  SessionHead head;
  uint8_t keep = 0;
  int64_t ttl = 0, created = 0;
  ContentHash checksum{};
  fields(keep, ttl, created, head.tokens);
  if (has_blocks) fields(head.block_bytes);
  fields(checksum);
  const std::string_view covered = bytes.substr(0, size - sizeof(checksum));
  if (!fields.Finished() || checksum != HashContent(covered)) {
    return DataLoss("session: the record's checksum is wrong");
  }
  head.durable = (keep & kDurable) != 0;
  head.evictable = (keep & kEvictable) != 0;
  if (has_blocks && head.block_bytes <= 0) {
    return DataLoss("session: expected the bytes of its blocks, found ", head.block_bytes);
  }
  // The system clock counts nanoseconds in 64 bits.
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max() / 1'000'000;
  if (ttl < 0 || ttl > kMax || created < 0 || created > kMax) {
    return DataLoss("session: expected times that a clock can show, found ", ttl, " and ", created,
                    " ms");
  }
  head.ttl = milliseconds(ttl);
  head.created = system_clock::time_point(milliseconds(created));
  return head;
}

Result<SessionRecord> DecodeSession(std::string_view bytes, const SnapshotCodec& codec,
                                    const BlockReader* blocks) {
  SessionRecord record;
  PS_ASSIGN_OR_RETURN(record.head, DecodeSessionHead(bytes));
  const std::string_view snapshot = bytes.substr(HeadBytes(record.head));
  if (!snapshot.empty()) {
    PS_ASSIGN_OR_RETURN(record.snapshot, codec.Decode(snapshot, blocks));
    PS_ASSIGN_OR_RETURN(record.groups, GroupsOfSnapshot(snapshot));
  }
  if (CountBytes(record.groups) != record.head.block_bytes) {
    return DataLoss("session: expected ", record.head.block_bytes, " bytes of blocks, found ",
                    CountBytes(record.groups));
  }
  const int64_t tokens = record.snapshot == nullptr ? 0 : record.snapshot->tokens();
  if (tokens != record.head.tokens) {
    return DataLoss("session: expected a snapshot of ", record.head.tokens, " tokens, found ",
                    tokens);
  }
  return record;
}

Result<std::vector<BlockGroup>> GroupsOfSession(std::string_view bytes) {
  PS_ASSIGN_OR_RETURN(const SessionHead head, DecodeSessionHead(bytes));
  if (head.block_bytes == 0) return std::vector<BlockGroup>();
  return GroupsOfSnapshot(bytes.substr(HeadBytes(head)));
}

}  // namespace polysketch
