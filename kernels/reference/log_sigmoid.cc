#include <algorithm>
#include <cmath>

#include "kernels/reference/backend.h"

namespace polysketch::reference {

void ReferenceBackend::LogSigmoid(const float* x, int64_t size, float* out) {
  for (int64_t i = 0; i < size; ++i) {
    // log(1 / (1 + e^-x)), with an exponential that does not overflow.
    const double value = x[i];
    out[i] = static_cast<float>(std::min(value, 0.0) - std::log1p(std::exp(-std::abs(value))));
  }
}

}  // namespace polysketch::reference
