#include "kernels/cpu/ops.h"

#include "kernels/cpu/isa_begin.h"

namespace {

// Strided pairs in, halves out. Products and sums round separately (no contraction), as the
// definition is written.
void RotateHead(const float* x, const float* cosines, const float* sines, int half, float* out) {
  for (int i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    out[i] = a * cosines[i] - b * sines[i];
    out[half + i] = b * cosines[i] + a * sines[i];
  }
}

}  // namespace

void Rope(Context& ctx, const float* qkv, int64_t rows, const float* cos_sin, int heads,
          int head_dim, float* q, float* k) {
  const int64_t width = static_cast<int64_t>(heads) * head_dim;
  const int half = head_dim / 2;
  ctx.ParallelRows(rows, 8, [&](int64_t first, int64_t last, int) {
    for (int64_t m = first; m < last; ++m) {
      const float* cosines = cos_sin + m * head_dim;
      const float* sines = cosines + half;
      for (int h = 0; h < heads; ++h) {
        const float* source = qkv + m * 3 * width + h * head_dim;
        const int64_t target = m * width + h * head_dim;
        RotateHead(source, cosines, sines, half, q + target);
        RotateHead(source + width, cosines, sines, half, k + target);
      }
    }
  });
}

#include "kernels/cpu/isa_end.h"
