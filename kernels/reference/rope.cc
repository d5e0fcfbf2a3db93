#include "base/check.h"
#include "kernels/angles.h"
#include "kernels/reference/backend.h"

namespace polysketch::reference {

void ReferenceBackend::Rope(const float* qkv, std::span<const int64_t> positions, int heads,
                            int head_dim, float* q, float* k) {
  PS_CHECK(head_dim % 2 == 0) << "head_dim=" << head_dim;
  const int half = head_dim / 2;
  const int width = heads * head_dim;
  const std::vector<float> thetas = RopeThetas(head_dim);
  std::vector<float> cos(half), sin(half);
  for (size_t m = 0; m < positions.size(); ++m) {
    CosSin(thetas, positions[m], cos.data(), sin.data());
    for (int part = 0; part < 2; ++part) {
      for (int h = 0; h < heads; ++h) {
        const float* x = qkv + (m * 3 + part) * width + h * head_dim;
        float* out = (part == 0 ? q : k) + m * width + h * head_dim;
        for (int i = 0; i < half; ++i) {
          const double even = x[2 * i], odd = x[2 * i + 1];
          out[i] = static_cast<float>(even * cos[i] - odd * sin[i]);
          out[half + i] = static_cast<float>(odd * cos[i] + even * sin[i]);
        }
      }
    }
  }
}

}  // namespace polysketch::reference
