#include "engine/session/session_record.h"

#include <limits>

#include "base/byte_io.h"

namespace polysketch {
namespace {

using std::chrono::milliseconds;
using std::chrono::system_clock;

constexpr std::string_view kMagic = "PSKSESS1";
constexpr size_t kHeadBytes = 8 + 1 + 8 + 8 + 16;

ContentHash Checksum(std::string_view head) { return HashContent(head); }

}  // namespace

Result<std::shared_ptr<const Snapshot>> SnapshotCodec::Decode(std::string_view bytes) const {
  PS_ASSIGN_OR_RETURN(Snapshot snapshot, DecodeSnapshot(bytes, binding, limits));
  return std::make_shared<const Snapshot>(std::move(snapshot));
}

std::string EncodeSession(const SessionRecord& record, const SnapshotCodec& codec) {
  ByteWriter out;
  for (const char c : kMagic) out.Put(c);
  out.Put<uint8_t>(record.durable ? 1 : 0);
  out.Put<int64_t>(record.ttl.count());
  out.Put<int64_t>(
      std::chrono::duration_cast<milliseconds>(record.created.time_since_epoch()).count());
  std::string bytes = std::move(out).Take();
  const ContentHash checksum = Checksum(bytes);
  bytes.append(reinterpret_cast<const char*>(checksum.data()), sizeof(checksum));
  if (record.snapshot != nullptr) bytes += codec.Encode(*record.snapshot);
  return bytes;
}

Result<SessionRecord> DecodeSession(std::string_view bytes, const SnapshotCodec& codec) {
  if (bytes.size() < kHeadBytes || !bytes.starts_with(kMagic)) {
    return DataLoss("session: expected the record of one, found ", bytes.size(),
                    " bytes of something else");
  }
  ByteReader in(bytes.substr(kMagic.size(), kHeadBytes - kMagic.size()));
  SessionRecord record;
  record.durable = in.GetBool();
  const auto ttl = in.Get<int64_t>(), created = in.Get<int64_t>();
  ContentHash checksum{};
  for (uint64_t& word : checksum) word = in.Get<uint64_t>();
  if (!in.Finished() || checksum != Checksum(bytes.substr(0, kHeadBytes - sizeof(checksum)))) {
    return DataLoss("session: the record's checksum is wrong");
  }
  // The clock counts in nanoseconds.
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 1'000'000;
  if (ttl < 0 || ttl > kMost || created < 0 || created > kMost) {
    return DataLoss("session: expected times that a clock can show, found ", ttl, " and ", created,
                    " ms");
  }
  record.ttl = milliseconds(ttl);
  record.created = system_clock::time_point(milliseconds(created));
  if (bytes.size() > kHeadBytes) {
    PS_ASSIGN_OR_RETURN(record.snapshot, codec.Decode(bytes.substr(kHeadBytes)));
  }
  return record;
}

}  // namespace polysketch
