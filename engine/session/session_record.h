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

// What a listing tells of it.
struct SessionHead {
  bool durable = false;
  std::chrono::milliseconds ttl{0};
  std::chrono::system_clock::time_point created;
  int64_t tokens = 0;
};

struct SessionRecord {
  SessionHead head;
  std::shared_ptr<const Snapshot> snapshot;  // of head.tokens; null: no token yet
};

std::string EncodeSession(const SessionRecord& record, const SnapshotCodec& codec);
// Of a record that may be cut off behind kStoredHeadBytes. DATA_LOSS for anything else.
Result<SessionHead> DecodeSessionHead(std::string_view bytes);
// DATA_LOSS, FAILED_PRECONDITION or INVALID_ARGUMENT as DecodeSnapshot.
Result<SessionRecord> DecodeSession(std::string_view bytes, const SnapshotCodec& codec);

}  // namespace polysketch
