#include <cmath>

#include "kernels/reference/backend.h"
#include "kernels/reference/row.h"

namespace polysketch::reference {

Row NormRow(const Row& x, const NormWeights& norm) {
  const double n = static_cast<double>(x.size());
  const bool centres = norm.kind == NormKind::kLayer;
  double mean = 0;
  for (double value : x) mean += value;
  mean = centres ? mean / n : 0;
  double variance = 0;
  for (double value : x) variance += (value - mean) * (value - mean);
  variance /= n;
  Row y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = (x[i] - mean) / std::sqrt(variance + norm.epsilon) * norm.scale[i];
    if (centres) y[i] += norm.bias[i];
  }
  return y;
}

void ReferenceBackend::Norm(const float* x, int64_t rows, int width, const NormWeights& norm,
                            float* out) {
  for (int64_t m = 0; m < rows; ++m) {
    const Row y = NormRow(Row(x + m * width, x + (m + 1) * width), norm);
    for (int i = 0; i < width; ++i) out[m * width + i] = static_cast<float>(y[i]);
  }
}

}  // namespace polysketch::reference
