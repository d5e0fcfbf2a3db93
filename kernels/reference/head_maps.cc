#include "kernels/reference/backend.h"

namespace polysketch::reference {

void ReferenceBackend::HeadMaps(const float* x, int64_t rows, int heads, int width,
                                const float* maps, const float* biases, int size, float* out) {
  for (int64_t m = 0; m < rows * heads; ++m) {
    const int64_t head = m % heads;
    for (int j = 0; j < size; ++j) {
      double sum = biases[head * size + j];
      for (int i = 0; i < width; ++i) {
        sum += static_cast<double>(x[m * width + i]) * maps[(head * width + i) * size + j];
      }
      out[m * size + j] = static_cast<float>(sum);
    }
  }
}

}  // namespace polysketch::reference
