#include <cmath>

#include "base/check.h"
#include "kernels/reference/backend.h"
#include "kernels/reference/row.h"

namespace polysketch::reference {

void ReferenceBackend::LearnedSketch(const SketchNetwork& net, const float* x, int64_t rows,
                                     float* out) {
  const int stride = (net.size + 7) / 8 * 8;
  for (int64_t m = 0; m < rows; ++m) {
    Row branch[2];
    for (int b = 0; b < 2; ++b) {
      Row y(x + m * net.input, x + (m + 1) * net.input);
      for (const SketchNetwork::Level& level : net.branch[b]) {
        Row hidden = MultiplyRow(NormRow(y, level.norm), *level.up);
        for (double& value : hidden) value = Gelu(value);
        y = MultiplyRow(hidden, *level.down);
      }
      PS_CHECK(static_cast<int>(y.size()) == net.size);
      branch[b] = y;
    }
    const double root = std::sqrt(static_cast<double>(net.size));
    for (int i = 0; i < stride; ++i) {
      out[m * stride + i] =
          i < net.size ? static_cast<float>(root * std::tanh(branch[0][i] * branch[1][i] / root))
                       : 0.0f;
    }
  }
}

}  // namespace polysketch::reference
