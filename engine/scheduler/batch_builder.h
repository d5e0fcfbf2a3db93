// Divides the tokens of a step among sequences. Pure arithmetic on counts: no model, no clock, no
// locks.
//
// Decoding sequences come first with one token each, since a reader waits for each token. Then
// their drafts (speculative decoding), then prompts and scores, chunk by chunk (short segments
// waste the block-parallel kernels): to the highest priority, within it to the client with the least
// virtual time, of that client to the part with the least, of that part to the highest level, within that
// to the sequence that was served least recently. So a short prompt beside long ones is processed in a step or two, and a client with a
// hundred prompts gets no more than a client with one, however long these have waited.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace polysketch {

class BatchBuilder {
 public:
  struct Candidate {
    // Cost of a fold before the first token of a prompt, in tokens of max_prompt_tokens.
    int64_t surcharge = 0;
    int64_t ready = 0;  // tokens it can process, >= 1; with `decoding` all but one are drafts
    bool decoding = false;
    int priority = 0;        // prompts of a higher priority go first
    int level = 0;           // of a client, prompts of a higher level go first
    size_t client = 0;       // index into virtual_times
    int64_t part = -1;       // index of the part of the client; negative: the client has one
    uint64_t last_turn = 0;  // when it was last served; Share writes it
  };

  static constexpr int64_t kMinChunk = 64;
  static constexpr int64_t kMinChunkWithSurcharge = 4;

  explicit BatchBuilder(int64_t max_tokens) : max_tokens_(max_tokens) {}

  // Returns the number of tokens of each candidate; 0: the candidate waits for a later step. The
  // sum is at most max_tokens, and the sum over prompts at most max_prompt_tokens. With candidates
  // it is at least one. Adds the tokens of each client to its virtual time.
  std::vector<int64_t> Share(std::span<Candidate> candidates, int64_t max_prompt_tokens,
                             std::span<int64_t> virtual_times);

 private:
  static void Charge(const Candidate& candidate, int64_t tokens, std::span<int64_t> virtual_times) {
    virtual_times[candidate.client] += tokens;
    if (candidate.part >= 0) virtual_times[static_cast<size_t>(candidate.part)] += tokens;
  }
  void ShareDecoding(std::span<Candidate> candidates, std::span<int64_t> virtual_times,
                     std::vector<int64_t>* tokens, int64_t* left);

  // Index of the prompt that is served next; candidates.size() if all prompts are served.
  static size_t NextPrompt(std::span<const Candidate> candidates, std::span<const int64_t> tokens,
                           std::span<const int64_t> virtual_times);

  const int64_t max_tokens_;
  uint64_t turn_ = 0;
};

}  // namespace polysketch
