// Divides the tokens of a step among sequences. Pure arithmetic on counts: no model, no clock, no
// locks.
//
// Decoding sequences come first with one token each, since a reader waits for each token. Then
// their drafts (speculative decoding), then prompts and scores, chunk by chunk (short segments
// waste the block-parallel kernels): to the highest priority, within it to the client with the
// least virtual time, of that client to the part with the least, of that part to the highest level,
// within that to the sequence that was served least recently. So a short prompt beside long ones is
// processed in a step or two, and a client with a hundred prompts gets no more than a client with
// one, however long these have waited.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace polysketch {

class BatchBuilder {
 public:
  struct Candidate {
    // What a token of a prompt, and a fold before its first token, take of the step's budget.
    double cost = 1;
    double surcharge = 0;
    int64_t ready = 0;  // tokens it can process, >= 1; with `decoding` all but one are drafts
    bool decoding = false;
    int priority = 0;        // prompts of a higher priority go first
    int level = 0;           // of a client, prompts of a higher level go first
    size_t client = 0;       // index into virtual_times
    int64_t part = -1;       // index of the part of the client; negative: the client has one
    uint64_t last_turn = 0;  // when it was last served; Share writes it
  };

  static constexpr int64_t kMinChunk = 64;
  // The first prompt of a step gets as many tokens, whatever they cost: so prompts progress.
  static constexpr int64_t kMinTokens = 4;

  explicit BatchBuilder(int64_t max_tokens) : max_tokens_(max_tokens) {}

  // Returns the number of tokens of each candidate; 0: the candidate waits for a later step. The
  // sum is at most max_tokens, and prompts cost at most `budget`, except for kMinTokens of the
  // first. With candidates the sum is at least one. Adds the tokens of each client to its virtual
  // time.
  std::vector<int64_t> Share(std::span<Candidate> candidates, double budget,
                             std::span<int64_t> virtual_times);
  // The tokens of `cost` each that `budget` pays for; INT64_MAX / 2 at most.
  static int64_t Affordable(double budget, double cost);

 private:
  static void Charge(const Candidate& candidate, int64_t tokens, std::span<int64_t> virtual_times) {
    virtual_times[candidate.client] += tokens;
    if (candidate.part >= 0) virtual_times[static_cast<size_t>(candidate.part)] += tokens;
  }
  void ShareDecoding(std::span<Candidate> candidates, std::span<int64_t> virtual_times,
                     std::vector<int64_t>* tokens, int64_t* left);

  // Index of the prompt that is served next; candidates.size() if all candidates are served.
  static size_t NextPrompt(std::span<const Candidate> candidates, const std::vector<bool>& served,
                           std::span<const int64_t> virtual_times);

  const int64_t max_tokens_;
  uint64_t turn_ = 0;
};

}  // namespace polysketch
