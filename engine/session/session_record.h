// A session as an entry of a store: its head, and the snapshot of its sequence.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/snapshot/snapshot_file.h"

namespace polysketch {

// How this process encodes and checks snapshots.
struct SnapshotCodec {
  SnapshotBinding binding;
  DecodeLimits limits;
  StateEncoding encoding = StateEncoding::kF32;

  std::string Encode(const Snapshot& snapshot) const {
    return EncodeSnapshot(snapshot, binding, encoding);
  }
  Result<std::shared_ptr<const Snapshot>> Decode(std::string_view bytes) const;
};

// The part of a session that a listing reads.
struct SessionHead {
  bool durable = false;
  bool evictable = false;  // SessionTable::Keep
  std::chrono::milliseconds ttl{0};
  std::chrono::system_clock::time_point created = {};
  int64_t tokens = 0;
};

struct SessionRecord {
  SessionHead head;
  std::shared_ptr<const Snapshot> snapshot;  // of head.tokens tokens; null: none yet
};

std::string EncodeSession(const SessionRecord& record, const SnapshotCodec& codec);
// `bytes` may end after kStoredHeadBytes. DATA_LOSS for bytes that do not begin a record.
Result<SessionHead> DecodeSessionHead(std::string_view bytes);
// Errors as DecodeSessionHead and DecodeSnapshot.
Result<SessionRecord> DecodeSession(std::string_view bytes, const SnapshotCodec& codec);

}  // namespace polysketch
