// Passes over a row of logits: plain loops that the compiler vectorises. Their order of operations
// is fixed in the source, so a row yields the same bits on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/row_sampling.h"

namespace polysketch {

// Sets maxima[b] to the largest of logits [b * kRowBlock, (b + 1) * kRowBlock). Returns false if a
// logit is not finite. `logits` is not empty.
bool BlockMaxima(std::span<const float> logits, std::vector<float>* maxima);

// The same for the logits that a mask allows: copies them to `out` [logits.size()], which may be
// `logits` itself, with the lowest float in the place of the others. Bit i of the words of `mask`
// says whether logit i is allowed. Returns false if any logit is not finite.
bool AllowedMaxima(std::span<const float> logits, std::span<const uint32_t> mask, float* out,
                   std::vector<float>* maxima);

// e^-|x| with a relative error of 1e-7; 0 where the result is below 1.7e-38 (|x| > 87).
float NegativeExp(float x);

// Sets weights[i] to e^((logits[i] - max) * scale), where max is the largest logit, and sums[b] to
// the sum of the weights of block b. A sum is added in a fixed order, has a relative error of 1e-6,
// and is never less than the largest weight of its block.
void Weigh(std::span<const float> logits, float max, float scale, std::vector<float>* weights,
           std::vector<float>* sums);

}  // namespace polysketch
