#include <cmath>

#include "kernels/reference/backend.h"

namespace polysketch::reference {

void ReferenceBackend::LinearFeatures(const float* x, int64_t rows, int width, float* out) {
  for (int64_t i = 0; i < rows * width; ++i) {
    // elu(x) + 1
    const double value = x[i];
    out[i] = static_cast<float>(value > 0 ? value + 1 : std::exp(value));
  }
}

}  // namespace polysketch::reference
