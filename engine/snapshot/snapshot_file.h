// Snapshots as bytes: the format of files, of entries in a shared store and of states that travel
// with a request. docs/snapshot-format.md describes every field.
//
// Reading judges all of it (sizes, checksums, the model it belongs to, every value) before anything
// is made of it; what has one byte changed or missing is refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/snapshot/check.h"
#include "engine/snapshot/content_hash.h"
#include "engine/snapshot/snapshot.h"
#include "engine/snapshot/state_encoding.h"

namespace polysketch {

// What a state's numbers mean something to.
struct SnapshotBinding {
  ContentHash model{};      // config.json and every weight
  ContentHash tokenizer{};  // zero without one
  std::string numerics;     // backend, weight format, state format: "cpu/avx512 weights=bf16 ..."

  bool operator==(const SnapshotBinding&) const = default;
};

std::string EncodeSnapshot(const Snapshot& snapshot, const SnapshotBinding& binding,
                           StateEncoding encoding);

struct DecodeLimits {
  SnapshotLimits tokens;
  size_t max_state_bytes = 0;  // as SequenceState::Save writes it
};

// DATA_LOSS: the bytes are damaged or none of a snapshot. FAILED_PRECONDITION: they are of another
// model, tokenizer or numeric format. INVALID_ARGUMENT: undamaged, and still not possible.
Result<Snapshot> DecodeSnapshot(std::string_view bytes, const SnapshotBinding& binding,
                                const DecodeLimits& limits);

}  // namespace polysketch
