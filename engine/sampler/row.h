// Passes over a row of logits. They are plain loops that the compiler vectorises, with one order of
// operations whatever it makes of them: a row gives the same bits on every machine.
#pragma once

#include <span>
#include <vector>

#include "kernels/row_sampling.h"

namespace polysketch {

// Element b is the largest of logits [b * kRowBlock, (b + 1) * kRowBlock). False when a logit is
// not finite. `logits` is not empty.
bool BlockMaxima(std::span<const float> logits, std::vector<float>* maxima);

// e^-|x|, to 1e-7 of itself; 0 where it is below 1.7e-38 (|x| > 87).
float NegativeExp(float x);

// weights[i] = e^((logits[i] - max) * scale) where max is the largest logit; sums[b] are those of
// the blocks, in a fixed order, to 1e-6 of themselves and never less than the largest of a block.
void Weigh(std::span<const float> logits, float max, float scale, std::vector<float>* weights,
           std::vector<float>* sums);

}  // namespace polysketch
