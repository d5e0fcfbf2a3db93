// A sequence between two requests or two replicas: everything that its next token depends on,
// immutable and shared. A session is a Snapshot with an id, a fork is another reference to it, and
// a snapshot file (snapshot_file.h) continues on any replica of the same model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/byte_buffer.h"
#include "engine/request/params.h"
#include "engine/snapshot/token_set.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/backend.h"

namespace polysketch {

// A state outside a slot, immutable: a copy that holds the blocks of the state that was saved,
// where states share blocks, or the bytes that SequenceState::Save writes.
struct SavedState {
  int64_t position = 0;  // tokens
  ByteBuffer bytes;
  std::shared_ptr<const SequenceState> copy;  // in the place of `bytes`; null: `bytes`
  StateMemory copy_memory;

  // Memory that no other state holds, and blocks that others may hold too.
  size_t own_bytes() const { return bytes.size() + copy_memory.own; }
  std::span<const StateBlock> blocks() const { return copy_memory.blocks; }
  size_t memory_bytes() const { return bytes.size() + copy_memory.bytes(); }

  // Bytes of the values as SequenceState::Save writes them.
  size_t saved_bytes() const { return copy == nullptr ? bytes.size() : copy->SavedBytes(); }
  // Calls write(bytes) for these bytes, in order, some at a time.
  void Write(const std::function<void(std::span<const uint8_t>)>& write) const {
    copy == nullptr ? write(bytes) : copy->SaveInPieces(write);
  }
  // The same state as bytes.
  std::shared_ptr<const SavedState> AsBytes() const;
};

// What sampling and decoding to text need of the tokens of a sequence. Its size does not grow with
// the sequence.
struct TokenHistory {
  // The last tokens may have left a character incomplete, which the text that follows completes. A
  // character has at most 4 bytes, so at most 3 tokens belong to its beginning.
  static constexpr size_t kTail = 3;

  TokenSet seen;              // ids in the whole sequence
  std::vector<int32_t> tail;  // its last tokens, at most kTail

  void Append(std::span<const int32_t> tokens);
  bool operator==(const TokenHistory&) const = default;
};

// One of several choices of a migrated completion: what was sent of it to the client.
struct MigratedChoice {
  int64_t sent = 0;    // tokens
  bool ended = false;  // whether its end was sent too

  bool operator==(const MigratedChoice&) const = default;
};

// A completion between two tokens.
struct Generation {
  GenerateParams params;
  int64_t max_tokens = 0;
  uint64_t seed = 0;
  int64_t prompt_tokens = 0;  // as Usage counts them
  int64_t cached_tokens = 0;
  int64_t generated = 0;                            // tokens: the sampler's position
  int64_t echoed = 0;                               // of Snapshot::pending
  int64_t scored_from = 0;                          // of Snapshot::pending, as logprobs_from
  std::vector<std::pair<int32_t, int32_t>> counts;  // (id, times in the output), with penalties
  // Its tokens, with GenerateParams::grammar; else the last of them that bad words need.
  std::vector<int32_t> output;
  double logprob_sum = 0;      // of the output, if it is reported
  std::string session;         // of the completion; empty: none
  int64_t session_tokens = 0;  // length of the session before the completion
  bool client_start = false;   // GenerateRequest::client_start
  std::string held;            // text that the stop matcher holds back
  IncrementalDecoder::Saved decoder;
  // With best_of > 1, once the choices have forked; else empty. Saving the states of all choices
  // would take best_of times the memory. Instead the snapshot holds the sequence before the fork,
  // with the prompt pending: the choices are generated again, which yields the same tokens, and the
  // tokens that were sent are not sent again.
  std::vector<MigratedChoice> choices;

  bool operator==(const Generation&) const = default;
};

struct Snapshot {
  std::shared_ptr<const SavedState> state;  // null: the empty state
  // Tokens of the sequence after those in the state. At least one, so that a continuation has a
  // token to process. For a completion that migrated during prefill: the rest of its prompt.
  std::vector<int32_t> pending;
  TokenHistory history;
  std::optional<Generation> generation;  // of a migrated completion

  int64_t position() const { return state == nullptr ? 0 : state->position; }
  // Length of the sequence.
  int64_t tokens() const { return position() + static_cast<int64_t>(pending.size()); }
  // Bytes of memory without the state, which several snapshots may share.
  size_t own_bytes() const {
    return sizeof(*this) + (pending.size() + history.tail.size()) * sizeof(int32_t);
  }
  size_t bytes() const { return own_bytes() + (state == nullptr ? 0 : state->memory_bytes()); }
};

}  // namespace polysketch
