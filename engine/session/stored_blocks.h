// The blocks of a session's state in the store (engine/snapshot/block_group.h): each group is an
// entry of its own beside the record of the session that names it. A turn writes the blocks that
// are new, and then a record.
//
// Order: a record is written after the groups that it names, and a group is deleted after the
// record that named it has been replaced or deleted. What a crash in between leaves has no name and
// expires. Groups belong to one session: its forks have others. They outlive their record, since
// they stay for twice its time to live from a moment that is at most half of it before the record's
// last use.
//
// Thread-safe as the store. Calls block.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/byte_buffer.h"
#include "base/status.h"
#include "engine/session/session_record.h"
#include "engine/store/state_store.h"

namespace polysketch {

// What the store holds of a session's state beside its record, as far as this process knows.
struct StoredBlocks {
  uint64_t revision = 0;  // of the record that names them
  std::vector<BlockGroup> groups;
  // When the time to live of all of them last began, or an earlier time; unset: unknown.
  std::optional<std::chrono::steady_clock::time_point> touched;
};

class BlockEntries {
 public:
  // Of the tenant's entries.
  BlockEntries(StateStore* store, const SnapshotCodec& codec, std::string tenant)
      : store_(store), codec_(codec), tenant_(std::move(tenant)) {}

  struct Written {
    StoredBlocks blocks;            // all of the state, in order
    ByteBuffer rest;                // the other values
    std::vector<BlockGroup> added;  // those that were written
  };
  // Writes the blocks of `state` that `before` does not have. An error means that the entries are
  // as before, but for some that have no name and expire.
  Result<Written> Write(const SavedState& state, const StoredBlocks& before,
                        std::chrono::milliseconds ttl, std::chrono::steady_clock::time_point now);
  // DATA_LOSS, and *missing, for an entry that does not exist.
  Result<ByteBuffer> Read(const BlockGroup& group, bool* missing);
  // Lets the entries live longer, if it is time to. One that does not exist is left out.
  Status Touch(StoredBlocks* blocks, std::chrono::milliseconds ttl,
               std::chrono::steady_clock::time_point now);
  // Deletes the entries of `groups` that are not in `kept`. An entry that cannot be deleted
  // expires.
  void Delete(const std::vector<BlockGroup>& groups, const std::vector<BlockGroup>& kept = {});

 private:
  // Drops from *groups the first one that does not hold the state's blocks, and those after it.
  // Appends groups of the blocks that are left, sets *added to the values of these, and returns the
  // values outside blocks. Reads the state once if nothing is dropped.
  ByteBuffer SplitAgainst(const SavedState& state, std::vector<BlockGroup>* groups,
                          std::vector<ByteBuffer>* added) const;

  StateStore* const store_;
  const SnapshotCodec& codec_;
  const std::string tenant_;
};

}  // namespace polysketch
