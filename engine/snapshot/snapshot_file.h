// Snapshots as bytes: files, entries of a state store and states that travel with a request.
// docs/snapshot-format.md describes every field.
//
// Decoding checks sizes, checksums, the model and every value before it makes a snapshot. Bytes
// with one byte changed or missing are refused.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/byte_buffer.h"
#include "base/status.h"
#include "engine/snapshot/block_group.h"
#include "engine/snapshot/check.h"
#include "engine/snapshot/content_hash.h"
#include "engine/snapshot/snapshot.h"
#include "engine/snapshot/state_encoding.h"

namespace polysketch {

// Identifies everything that the numbers of a state depend on.
struct SnapshotBinding {
  ContentHash model{};      // config.json and every weight
  ContentHash tokenizer{};  // zero without a tokenizer
  std::string numerics;     // backend, weight format, state format: "cpu/avx512 weights=bf16 ..."
  // Whether states hold the sums of a decay gate. Not in the bytes, since `model` implies it; such
  // files have a version of their own.
  bool decay_gate = false;

  bool operator==(const SnapshotBinding&) const = default;
};

std::string EncodeSnapshot(const Snapshot& snapshot, const SnapshotBinding& binding,
                           StateEncoding encoding);

// A snapshot whose full blocks are stored apart, in `groups`. `rest`: the other values of its state
// (StateLayout::RestBytes). It belongs to no migrated completion.
std::string EncodeSnapshot(const Snapshot& snapshot, const SnapshotBinding& binding,
                           StateEncoding encoding, const ByteBuffer& rest,
                           const std::vector<BlockGroup>& groups);

struct DecodeLimits {
  SnapshotLimits tokens;
  size_t max_state_bytes = 0;  // as SequenceState::Save writes it
};

// DATA_LOSS: the bytes are damaged or are not a snapshot. FAILED_PRECONDITION: the snapshot belongs
// to another model, tokenizer or numeric format, or has another version. INVALID_ARGUMENT: the
// snapshot is undamaged and holds impossible values. `blocks` reads those that are stored apart;
// without it a snapshot that has some is refused as one of another version.
Result<Snapshot> DecodeSnapshot(std::string_view bytes, const SnapshotBinding& binding,
                                const DecodeLimits& limits, const BlockReader* blocks = nullptr);

// The groups of blocks that the snapshot names; none of one that is whole. DATA_LOSS as
// DecodeSnapshot.
Result<std::vector<BlockGroup>> GroupsOfSnapshot(std::string_view bytes);

// The memory of the state that DecodeSnapshot(bytes) makes, before it is made; 0 for bytes whose
// header is refused.
int64_t DecodedStateBytes(std::string_view bytes);

}  // namespace polysketch
