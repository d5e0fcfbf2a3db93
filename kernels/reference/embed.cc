#include "base/check.h"
#include "kernels/angles.h"
#include "kernels/reference/backend.h"
#include "kernels/reference/matrix.h"

namespace polysketch::reference {

void ReferenceBackend::Embed(const Matrix& embedding, std::span<const int32_t> tokens,
                             std::span<const int64_t> positions, float* out) {
  const ReferenceMatrix& matrix = Cast(embedding);
  const int width = static_cast<int>(embedding.in());
  PS_CHECK(positions.empty() || tokens.size() == positions.size());
  PS_CHECK(width % 2 == 0) << "width=" << width;
  const std::vector<float> thetas = PositionThetas(width);
  std::vector<float> cos(width / 2), sin(width / 2);
  for (size_t m = 0; m < tokens.size(); ++m) {
    PS_CHECK(tokens[m] >= 0 && tokens[m] < embedding.out()) << "token=" << tokens[m];
    if (!positions.empty()) CosSin(thetas, positions[m], cos.data(), sin.data());
    float* row = out + m * width;
    for (int i = 0; i < width / 2; ++i) {
      row[2 * i] = matrix.value(2 * i, tokens[m]) + sin[i];
      row[2 * i + 1] = matrix.value(2 * i + 1, tokens[m]) + cos[i];
    }
  }
}

}  // namespace polysketch::reference
