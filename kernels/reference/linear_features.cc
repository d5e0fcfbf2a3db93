#include <cmath>

#include "kernels/reference/backend.h"

namespace polysketch::reference {

void ReferenceBackend::LinearFeatures(const float* x, int64_t rows, int width, const float* factors,
                                      int heads, float* out) {
  for (int64_t i = 0; i < rows * width; ++i) {
    // elu(x) + 1
    const double value = x[i], factor = factors == nullptr ? 1 : factors[i / width % heads];
    out[i] = static_cast<float>(factor * (value > 0 ? value + 1 : std::exp(value)));
  }
}

}  // namespace polysketch::reference
