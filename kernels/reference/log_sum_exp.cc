#include <algorithm>
#include <cmath>

#include "kernels/reference/backend.h"

namespace polysketch::reference {

void ReferenceBackend::LogSumExp(const float* x, int64_t rows, int64_t width, float* out) {
  for (int64_t m = 0; m < rows; ++m) {
    const float* row = x + m * width;
    const double largest = *std::max_element(row, row + width);
    double sum = 0;
    for (int64_t j = 0; j < width; ++j) sum += std::exp(row[j] - largest);
    out[m] = static_cast<float>(largest + std::log(sum));
  }
}

}  // namespace polysketch::reference
