// Whether this engine can continue a snapshot that a file or a client brought.
#pragma once

#include "base/status.h"
#include "engine/snapshot/snapshot.h"

namespace polysketch {

struct SnapshotLimits {
  int vocab_size = 0;
  int32_t max_new_tokens = 0;
  bool has_tokenizer = false;
};

// INVALID_ARGUMENT names what is wrong. SequenceState::Load checks the bytes of the state.
Status CheckSnapshot(const Snapshot& snapshot, const SnapshotLimits& limits);

}  // namespace polysketch
