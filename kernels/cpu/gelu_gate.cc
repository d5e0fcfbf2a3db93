#include <immintrin.h>

#include "kernels/cpu/row_ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"

void GeluArray(const float* x, int64_t size, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) Store(Gelu(Load(x + i)), out + i);
  if (i < size) {
    const Mask mask = FirstN(static_cast<int>(size - i));
    StoreMasked(Gelu(LoadMasked(x + i, mask)), out + i, mask);
  }
}

void CpuBackend::GeluGate(const float* up, int64_t rows, int hidden, float* out) {
  context_.ParallelRows(rows, 2, [&](int64_t first, int64_t last, int) {
    for (int64_t m = first; m < last; ++m) {
      const float* value = up + m * 2 * hidden;
      const float* gate = value + hidden;
      float* result = out + m * hidden;
      int i = 0;
      for (; i + kLanes <= hidden; i += kLanes) {
        Store(Mul(Load(value + i), Gelu(Load(gate + i))), result + i);
      }
      if (i < hidden) {
        const Mask mask = FirstN(hidden - i);
        StoreMasked(Mul(LoadMasked(value + i, mask), Gelu(LoadMasked(gate + i, mask))), result + i,
                    mask);
      }
    }
  });
}

#include "kernels/cpu/isa_end.h"
