// Who gets how many of a step's tokens. Pure arithmetic on counts: no model, no clock, no locks.
//
// Decoding sequences come first with one token each: somebody is reading along. Then their drafts
// (speculative decoding), then prompts and scores: chunk by chunk (short segments waste the
// block-parallel kernels) to the highest level, there to the tenant that has had least, there to
// the sequence whose last turn is longest ago. So a short prompt beside long ones is done in a step
// or two, and a tenant with a hundred prompts gets no more than one with a single one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace polysketch {

class BatchBuilder {
 public:
  struct Candidate {
    // What the first token of a prompt costs besides, in tokens of max_prompt_tokens.
    int64_t surcharge = 0;
    int64_t ready = 0;  // tokens it could process, >= 1; of a decoding one all but 1 are drafts
    bool decoding = false;
    int level = 0;           // prompts of a higher one go first
    size_t tenant = 0;       // index into virtual_times
    uint64_t last_turn = 0;  // when it was served last; Share writes it
  };

  static constexpr int64_t kMinChunk = 64;
  static constexpr int64_t kMinChunkWithSurcharge = 4;

  explicit BatchBuilder(int64_t max_tokens) : max_tokens_(max_tokens) {}

  // Tokens for each candidate, 0 for those that wait for a later step. Their sum is at most
  // max_tokens, and those of prompts at most max_prompt_tokens; at least 1 when there is a
  // candidate. virtual_times of the tenants grow by what they get.
  std::vector<int64_t> Share(std::span<Candidate> candidates, int64_t max_prompt_tokens,
                             std::span<int64_t> virtual_times);

 private:
  void ShareDecoding(std::span<Candidate> candidates, std::span<int64_t> virtual_times,
                     std::vector<int64_t>* tokens, int64_t* left);

  const int64_t max_tokens_;
  uint64_t turn_ = 0;
};

}  // namespace polysketch
