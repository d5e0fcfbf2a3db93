#include <algorithm>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/simd.h"

#include "kernels/cpu/isa_begin.inc"

namespace {

// log(1 + y) for y in [0, 1]: 2 atanh(s), s = y / (2 + y) in [0, 1/3], so that a small y loses no
// bits to the 1. The series 2 s (1 + s^2 / 3 + s^4 / 5 + ...) to s^14: the rest is below 1e-8.
PS_INLINE V LogOnePlus(V y) {
  const V s = Div(y, Add(y, Set1(2.0f)));
  const V z = Mul(s, s);
  V p = Set1(1.0f / 15);
  p = Fma(p, z, Set1(1.0f / 13));
  p = Fma(p, z, Set1(1.0f / 11));
  p = Fma(p, z, Set1(1.0f / 9));
  p = Fma(p, z, Set1(1.0f / 7));
  p = Fma(p, z, Set1(1.0f / 5));
  p = Fma(p, z, Set1(1.0f / 3));
  const V twice = Add(s, s);
  return Fma(Mul(p, z), twice, twice);
}

// min(x, 0) - log(1 + e^-|x|): neither part overflows, and both have the same sign.
PS_INLINE V LogSigmoidLanes(V x) {
  return Sub(Min(x, Zero()), LogOnePlus(Exp(Sub(Zero(), Abs(x)))));
}

}  // namespace

void CpuBackend::LogSigmoid(const float* x, int64_t size, float* out) {
  context_.ParallelRows(size, 4096, [&](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last; i += kLanes) {
      const Mask mask = FirstN(static_cast<int>(std::min<int64_t>(kLanes, last - i)));
      StoreMasked(LogSigmoidLanes(LoadMasked(x + i, mask)), out + i, mask);
    }
  });
}

#include "kernels/cpu/isa_end.inc"
