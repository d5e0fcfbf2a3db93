#include <algorithm>

#include "kernels/reference/backend.h"

namespace polysketch::reference {

void ReferenceBackend::AffineFeatures(const float* x, int64_t rows, int width, const float* terms,
                                      int heads, float* out) {
  const int stride = (width + 8) / 8 * 8;
  std::fill_n(out, rows * stride, 0.0f);
  for (int64_t m = 0; m < rows; ++m) {
    const float* term = terms == nullptr ? nullptr : terms + m % heads * 2;
    const float* from = x + m * width;
    float* to = out + m * stride;
    to[0] = term == nullptr ? 1 : term[0];
    for (int i = 0; i < width; ++i) to[1 + i] = term == nullptr ? from[i] : term[1] * from[i];
  }
}

}  // namespace polysketch::reference
