#include <cmath>
#include <numbers>

#include "kernels/reference/backend.h"
#include "kernels/reference/row.h"

namespace polysketch::reference {

double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

double Silu(double x) { return x / (1 + std::exp(-x)); }

void ReferenceBackend::Gate(GateKind gate, const float* up, int64_t rows, int hidden, float* out) {
  if (gate == GateKind::kUngatedGelu) {
    for (int64_t i = 0; i < rows * hidden; ++i) out[i] = static_cast<float>(Gelu(up[i]));
    return;
  }
  for (int64_t m = 0; m < rows; ++m) {
    const float* u = up + m * 2 * hidden;
    const float* g = u + hidden;
    for (int i = 0; i < hidden; ++i) {
      const double opened = gate == GateKind::kGelu ? Gelu(g[i]) : Silu(g[i]);
      out[m * hidden + i] = static_cast<float>(u[i] * opened);
    }
  }
}

}  // namespace polysketch::reference
