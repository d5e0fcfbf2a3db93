// Who gets how many of a step's tokens. Pure arithmetic on counts: no model, no clock, no locks.
//
// Decoding sequences come first with one token each: somebody is reading along. What is left is
// shared among prompts and scores: in rotation each gets its share, at least kMinChunk (short
// segments waste the block-parallel kernels) as far as it goes; what short ones leave over goes to
// the others. So a short prompt beside long ones is done in a step or two, and nobody waits for
// more steps than there are others.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace polysketch {

class BatchBuilder {
 public:
  struct Candidate {
    uint64_t id = 0;        // rises with the order of arrival
    int64_t ready = 0;      // tokens it could process, >= 1
    bool decoding = false;  // then ready == 1
  };

  static constexpr int64_t kMinChunk = 64;

  explicit BatchBuilder(int64_t max_tokens) : max_tokens_(max_tokens) {}

  // Tokens for each candidate, 0 for those that wait for a later step. Their sum is at most
  // max_tokens, and at least 1 when there is a candidate. Remembers whose turn comes next.
  void Share(std::span<const Candidate> candidates, std::vector<int64_t>* tokens);

 private:
  // Indices of the candidates that are `decoding`, in order of id, beginning behind `last`.
  static std::vector<size_t> Rotation(std::span<const Candidate> candidates, bool decoding,
                                      uint64_t last);

  const int64_t max_tokens_;
  uint64_t last_decoding_ = 0;  // id of the last that had its turn
  uint64_t last_prefill_ = 0;
};

}  // namespace polysketch
