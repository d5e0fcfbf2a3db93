// Whether a snapshot from outside (a file, a client) can be continued by this engine.
#pragma once

#include "base/status.h"
#include "engine/snapshot/snapshot.h"

namespace polysketch {

struct SnapshotLimits {
  int vocab_size = 0;
  int32_t max_new_tokens = 0;
  bool has_tokenizer = false;
};

// INVALID_ARGUMENT names what is wrong. The state's bytes are judged by SequenceState::Load.
Status CheckSnapshot(const Snapshot& snapshot, const SnapshotLimits& limits);

}  // namespace polysketch
