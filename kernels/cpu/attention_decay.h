// The decay gate: the sums G of a block's log decays, and the factors that they make of weights, of
// the far part and of a fold.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd.h"

#include "kernels/cpu/isa_begin.inc"

// How the parts of attention apply a gate: Decay factors multiply lanes of tokens from `s` on.
struct NoDecay {
  __attribute__((always_inline)) V operator()(V x, int64_t /*s*/) const { return x; }
};

// e^(G_t - G_s) for the weights of the token t whose sum is `row`.
struct NearDecay {
  V row;
  const float* sums;
  __attribute__((always_inline)) V operator()(V x, int64_t s) const {
    return Mul(x, Exp(Sub(row, Load(sums + s))));
  }
};

// Factors that are computed once for many features.
struct FoldDecay {
  const float* factors;
  __attribute__((always_inline)) V operator()(V x, int64_t s) const {
    return Mul(x, Load(factors + s));
  }
};

// Writes the sums of `count` tokens at `offset` of the block: each is the one before it plus the
// token's log decay. log_decay: of the first token; those of the next ones are `stride` apart.
static void AppendDecay(const float* log_decay, int64_t stride, int64_t count, int64_t offset,
                        float* sums) {
  float sum = offset == 0 ? 0.0f : sums[offset - 1];
  for (int64_t i = 0; i < count; ++i) {
    sum += log_decay[i * stride];
    sums[offset + i] = sum;
  }
}

// Multiplies the far part of a tile of rows, out [rows][out_row] and denominators [rows], by e^G.
// sums: of the rows' tokens, which have `heads` rows each.
static void DecayFarPart(const float* sums, int rows, int heads, float* out, int64_t out_row,
                         float* denominators) {
  float factors[kLanes];
  Store(Exp(LoadMasked(sums, FirstN(rows / heads))), factors);
  for (int m = 0; m < rows; ++m) {
    const V factor = Set1(factors[m / heads]);
    float* row = out + m * out_row;
    for (int64_t i = 0; i < out_row; i += kLanes) Store(Mul(Load(row + i), factor), row + i);
    denominators[m] *= factors[m / heads];
  }
}

// factors [padded, a multiple of 16] of a fold: e^(G_b - G_s) of the block's tokens, zero after
// them. Returns e^(G_b), what remains of the state.
static float FoldFactors(const float* sums, int64_t block, int64_t padded, float* factors) {
  const V last = Set1(sums[block - 1]);
  for (int64_t s = 0; s < padded; s += kLanes) {
    const auto count = static_cast<int>(std::clamp<int64_t>(block - s, 0, kLanes));
    Store(ZeroUnless(FirstN(count), Exp(Sub(last, Load(sums + s)))), factors + s);
  }
  float kept[kLanes];
  Store(Exp(last), kept);
  return kept[0];
}

#include "kernels/cpu/isa_end.inc"
