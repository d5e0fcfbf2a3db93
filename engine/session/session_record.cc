#include "engine/session/session_record.h"

#include <limits>

#include "base/check.h"
#include "engine/snapshot/fields.h"
#include "engine/store/state_store.h"

namespace polysketch {
namespace {

using std::chrono::milliseconds;
using std::chrono::system_clock;

constexpr std::string_view kMagic = "PSKSESS2";
constexpr size_t kHeadBytes = 8 + 1 + 8 + 8 + 8 + sizeof(ContentHash);
static_assert(kHeadBytes <= kStoredHeadBytes);
// Bits of the first byte.
constexpr uint8_t kDurable = 1;
constexpr uint8_t kEvictable = 2;

}  // namespace

Result<std::shared_ptr<const Snapshot>> SnapshotCodec::Decode(std::string_view bytes) const {
  PS_ASSIGN_OR_RETURN(Snapshot snapshot, DecodeSnapshot(bytes, binding, limits));
  return std::make_shared<const Snapshot>(std::move(snapshot));
}

std::string EncodeSession(const SessionRecord& record, const SnapshotCodec& codec) {
  const SessionHead& head = record.head;
  PS_CHECK(head.tokens == (record.snapshot == nullptr ? 0 : record.snapshot->tokens()));
  FieldWriter fields(kMagic);
  const auto keep =
      static_cast<uint8_t>((head.durable ? kDurable : 0) | (head.evictable ? kEvictable : 0));
  fields(keep, int64_t{head.ttl.count()},
         int64_t{std::chrono::duration_cast<milliseconds>(head.created.time_since_epoch()).count()},
         head.tokens);
  std::string bytes = std::move(fields).Take();
  FieldWriter checksum;
  checksum(HashContent(bytes));
  bytes += std::move(checksum).Take();
  if (record.snapshot != nullptr) bytes += codec.Encode(*record.snapshot);
  return bytes;
}

Result<SessionHead> DecodeSessionHead(std::string_view bytes) {
  if (bytes.size() < kHeadBytes || !bytes.starts_with(kMagic)) {
    return DataLoss("session: expected the record of one, found ", bytes.size(),
                    " bytes of something else");
  }
  FieldReader fields(bytes.substr(kMagic.size(), kHeadBytes - kMagic.size()));
  SessionHead head;
  uint8_t keep = 0;
  int64_t ttl = 0, created = 0;
  ContentHash checksum{};
  fields(keep, ttl, created, head.tokens, checksum);
  const std::string_view covered = bytes.substr(0, kHeadBytes - sizeof(checksum));
  if (!fields.Finished() || checksum != HashContent(covered)) {
    return DataLoss("session: the record's checksum is wrong");
  }
  head.durable = (keep & kDurable) != 0;
  head.evictable = (keep & kEvictable) != 0;
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

Result<SessionRecord> DecodeSession(std::string_view bytes, const SnapshotCodec& codec) {
  SessionRecord record;
  PS_ASSIGN_OR_RETURN(record.head, DecodeSessionHead(bytes));
  if (bytes.size() > kHeadBytes) {
    PS_ASSIGN_OR_RETURN(record.snapshot, codec.Decode(bytes.substr(kHeadBytes)));
  }
  const int64_t tokens = record.snapshot == nullptr ? 0 : record.snapshot->tokens();
  if (tokens != record.head.tokens) {
    return DataLoss("session: expected a snapshot of ", record.head.tokens, " tokens, found ",
                    tokens);
  }
  return record;
}

}  // namespace polysketch
