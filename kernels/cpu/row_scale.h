// Scales of rows of activations.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd.h"
#include "kernels/quantize.h"

#include "kernels/cpu/isa_begin.inc"

// The largest |x| of a row, or NaN if an element is NaN.
PS_INLINE float RowMagnitude(const float* x, int64_t width) {
  I largest = IntZero();
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) largest = MaxMagnitude(largest, Load(x + i));
  if (i < width) {
    largest = MaxMagnitude(largest, LoadMasked(x + i, FirstN(static_cast<int>(width - i))));
  }
  return ReduceMagnitude(largest);
}

PS_INLINE QuantScale RowScale(const float* x, int64_t width) {
  return QuantScale::Of(RowMagnitude(x, width));
}

// QuantScale::Of for kLanes magnitudes at once, the first `count` of which are used: a row would
// wait for its two divisions.
PS_INLINE void QuantScales(const float* magnitudes, int count, QuantScale* out,
                           float limit = kQuantMax) {
  const V x = Load(magnitudes);
  const Mask tiny = Less(x, Set1(kQuantTiny * (limit / kQuantMax)));
  alignas(64) float scales[kLanes], inverses[kLanes];
  Store(Select(tiny, Zero(), Div(x, Set1(limit))), scales);
  Store(Select(tiny, Zero(), Div(Set1(limit), x)), inverses);
  for (int i = 0; i < count; ++i) out[i] = {scales[i], inverses[i]};
}

#include "kernels/cpu/isa_end.inc"
