// A sequence at rest: everything that outlives a step, immutable and shared. A session is one of
// these behind a name, a fork is another reference to it, and a file of it (snapshot_file.h)
// continues on any replica of the same model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/byte_buffer.h"
#include "base/status.h"
#include "engine/request/request.h"
#include "engine/snapshot/token_set.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/backend.h"

namespace polysketch {

// What SequenceState::Save wrote.
struct SavedState {
  int64_t position = 0;  // tokens
  ByteBuffer bytes;

  static std::shared_ptr<const SavedState> Of(const SequenceState& state);
};

// One of several choices of a stopped completion: what of it the client has.
struct MigratedChoice {
  int64_t given = 0;  // tokens
  bool over = false;  // and its end

  bool operator==(const MigratedChoice&) const = default;
};

// A completion that was stopped between two tokens; the resumed one gives the very next.
struct Generation {
  GenerateParams params;
  int64_t max_tokens = 0;
  uint64_t seed = 0;
  int64_t prompt_tokens = 0;  // of the request, as its Usage counts them
  int64_t cached_tokens = 0;
  int64_t generated = 0;                            // tokens given out: the sampler's position
  int64_t echoed = 0;                               // of Snapshot::pending
  std::vector<std::pair<int32_t, int32_t>> counts;  // (id, times in the output), with penalties
  double logprob_sum = 0;                           // of the output, if it is asked for
  std::string session;                              // that the completion runs in; empty: none
  int64_t session_tokens = 0;                       // and where that session stood
  std::string held;                                 // by the stop matcher
  IncrementalDecoder::Saved decoder;
  // Of several choices, once they have parted (before, and of one choice: empty). Their states
  // would be as many; instead the snapshot stands where they parted or before, with the prompt
  // pending. What follows is a function of that and the seed: it is made again, and what the client
  // has of it is left out.
  std::vector<MigratedChoice> choices;

  bool operator==(const Generation&) const = default;
};

struct Snapshot {
  std::shared_ptr<const SavedState> state;  // null: no token has been processed
  // Tokens of the sequence behind those in the state. At least the last one waits here, so that a
  // continuation has a token to run; of a stopped completion, the rest of its prompt.
  std::vector<int32_t> pending;
  TokenSet seen;              // ids in the whole sequence
  std::vector<int32_t> tail;  // the last tokens of the sequence, at most kTail
  std::optional<Generation> generation;

  // What a text behind it must know of a character that tokens may have left unfinished.
  static constexpr size_t kTail = 3;

  int64_t position() const { return state == nullptr ? 0 : state->position; }
  // Length of the sequence.
  int64_t tokens() const { return position() + static_cast<int64_t>(pending.size()); }
  // Memory that it takes.
  size_t bytes() const;
};

// The last `most` of what `tokens` and then `more` hold.
std::vector<int32_t> LastTokens(std::span<const int32_t> tokens, std::span<const int32_t> more,
                                size_t most);

}  // namespace polysketch
