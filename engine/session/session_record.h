// A session as an entry of a store: what it is, and the snapshot of its sequence.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/snapshot/snapshot_file.h"

namespace polysketch {

// How this process writes and judges snapshots.
struct SnapshotCodec {
  SnapshotBinding binding;
  DecodeLimits limits;
  StateEncoding encoding = StateEncoding::kF32;

  std::string Encode(const Snapshot& snapshot) const {
    return EncodeSnapshot(snapshot, binding, encoding);
  }
  Result<std::shared_ptr<const Snapshot>> Decode(std::string_view bytes) const;
};

struct SessionRecord {
  bool durable = false;
  std::chrono::milliseconds ttl{0};
  std::chrono::system_clock::time_point created;
  std::shared_ptr<const Snapshot> snapshot;  // null: no token yet
};

std::string EncodeSession(const SessionRecord& record, const SnapshotCodec& codec);
// DATA_LOSS, FAILED_PRECONDITION or INVALID_ARGUMENT as DecodeSnapshot.
Result<SessionRecord> DecodeSession(std::string_view bytes, const SnapshotCodec& codec);

}  // namespace polysketch
