// Guesses how a sequence goes on. The model verifies a guess as one short segment, whose rows are
// sampled as if the tokens had come one by one: a good guess saves steps, a bad one costs some
// rows, and neither changes what comes out.
//
// One object for a sequence; engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace polysketch {

class Drafter {
 public:
  virtual ~Drafter() = default;
  // Tokens that are certain, in order: the prompt, then what was sampled.
  virtual void Append(std::span<const int32_t> tokens) = 0;
  // Up to `most` tokens that may come next; none when there is nothing to go by.
  virtual std::vector<int32_t> Propose(int64_t most) = 0;
};

}  // namespace polysketch
