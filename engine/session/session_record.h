// A session as an entry of a store: its head, and the snapshot of its sequence.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/snapshot/snapshot_file.h"

namespace polysketch {

// How this process encodes and checks snapshots.
struct SnapshotCodec {
  SnapshotBinding binding;
  DecodeLimits limits;
  StateEncoding encoding = StateEncoding::kF32;
  StateLayout layout = {};  // without blocks: sessions are stored whole

  std::string Encode(const Snapshot& snapshot) const {
    return EncodeSnapshot(snapshot, binding, encoding);
  }
  Result<std::shared_ptr<const Snapshot>> Decode(std::string_view bytes,
                                                 const BlockReader* blocks = nullptr) const;
};

// The part of a session that a listing reads.
struct SessionHead {
  bool durable = false;
  bool evictable = false;  // SessionTable::Keep
  std::chrono::milliseconds ttl{0};
  std::chrono::system_clock::time_point created = {};
  int64_t tokens = 0;
  int64_t block_bytes = 0;  // of the entries that hold blocks of the state; 0: there are none
};

struct SessionRecord {
  SessionHead head;
  std::shared_ptr<const Snapshot> snapshot = nullptr;  // of head.tokens tokens; null: none yet
  std::vector<BlockGroup> groups = {};                 // of its state that are stored apart
};

// `rest`: the values of the state that are not in record.groups; null if there are none.
std::string EncodeSession(const SessionRecord& record, const SnapshotCodec& codec,
                          const ByteBuffer* rest = nullptr);
// `bytes` may end after kStoredHeadBytes. DATA_LOSS for bytes that do not begin a record.
Result<SessionHead> DecodeSessionHead(std::string_view bytes);
// Errors as DecodeSessionHead and DecodeSnapshot.
Result<SessionRecord> DecodeSession(std::string_view bytes, const SnapshotCodec& codec,
                                    const BlockReader* blocks = nullptr);
// The groups of a record, without its state.
Result<std::vector<BlockGroup>> GroupsOfSession(std::string_view bytes);

}  // namespace polysketch
