#include <cmath>

#include "kernels/reference/backend.h"
#include "kernels/reference/row.h"

namespace polysketch::reference {

void ReferenceBackend::PerformerFeatures(const Matrix& omega, const float* x, int64_t rows,
                                         float* out) {
  const int64_t d = omega.in(), m = omega.out();
  for (int64_t row = 0; row < rows; ++row) {
    Row scaled(x + row * d, x + (row + 1) * d);
    double half_norm = 0;
    for (double& value : scaled) {
      value /= std::pow(static_cast<double>(d), 0.25);
      half_norm += value * value / 2;
    }
    const Row projected = MultiplyRow(scaled, omega);
    for (int64_t i = 0; i < m; ++i) {
      out[row * m + i] = static_cast<float>(std::exp(projected[i] - half_norm) /
                                            std::sqrt(static_cast<double>(m)));
    }
  }
}

}  // namespace polysketch::reference
