// Proposes the next tokens of one sequence: a draft. The model verifies a draft in one segment
// whose rows are sampled in order (DraftVerifier): a good draft saves steps, a bad one costs rows,
// and neither changes the output.
//
// Used by the engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace polysketch {

class Drafter {
 public:
  virtual ~Drafter() = default;
  // Adds tokens of the sequence, in order: the prompt, then the sampled ones.
  virtual void Append(std::span<const int32_t> tokens) = 0;
  // Returns at most `max` tokens that may come next; empty without a proposal.
  virtual std::vector<int32_t> Propose(int64_t max) = 0;
};

}  // namespace polysketch
