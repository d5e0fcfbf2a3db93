#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/simd.h"

#include "kernels/cpu/isa_begin.inc"

namespace {

float RowLogSumExp(const float* x, int64_t width) {
  V top = Set1(-std::numeric_limits<float>::infinity());
  const V floor = top;
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) top = Max(top, Load(x + i));
  const Mask tail = FirstN(static_cast<int>(width - i));
  if (i < width) top = Max(top, Select(tail, LoadMasked(x + i, tail), floor));
  const float highest = ReduceMax(top);
  const V shift = Set1(highest);
  V sum = Zero();
  for (i = 0; i + kLanes <= width; i += kLanes) sum = Add(sum, Exp(Sub(Load(x + i), shift)));
  if (i < width) sum = Add(sum, ZeroUnless(tail, Exp(Sub(LoadMasked(x + i, tail), shift))));
  return highest + std::log(ReduceAdd(sum));
}

}  // namespace

void CpuBackend::LogSumExp(const float* x, int64_t rows, int64_t width, float* out) {
  context_.ParallelRows(rows, 1 + 8192 / width, [&](int64_t first, int64_t last, int) {
    for (int64_t m = first; m < last; ++m) out[m] = RowLogSumExp(x + m * width, width);
  });
}

#include "kernels/cpu/isa_end.inc"
