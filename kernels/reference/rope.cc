#include <algorithm>

#include "base/check.h"
#include "kernels/angles.h"
#include "kernels/reference/backend.h"

namespace polysketch::reference {

void ReferenceBackend::Rope(const float* qkv, std::span<const int64_t> positions,
                            const HeadShape& shape, std::span<const float> thetas, float* q,
                            float* k) {
  const int d = shape.head_dim, half = d / 2;
  PS_CHECK(thetas.empty() || (d % 2 == 0 && std::ssize(thetas) == half)) << "head_dim=" << d;
  std::vector<float> cos(thetas.size()), sin(thetas.size());
  for (size_t m = 0; m < positions.size(); ++m) {
    CosSin(thetas, positions[m], cos.data(), sin.data());
    for (int h = 0; h < shape.heads + shape.kv_heads; ++h) {
      const float* x = qkv + m * shape.row() + int64_t{h} * d;
      float* out = h < shape.heads ? q + m * shape.q_row() + int64_t{h} * d
                                   : k + m * shape.k_row() + int64_t{h - shape.heads} * d;
      if (thetas.empty()) std::copy_n(x, d, out);
      for (size_t i = 0; i < thetas.size(); ++i) {
        const double even = x[2 * i], odd = x[2 * i + 1];
        out[i] = static_cast<float>(even * cos[i] - odd * sin[i]);
        out[half + i] = static_cast<float>(odd * cos[i] + even * sin[i]);
      }
    }
  }
}

void ReferenceBackend::RopeAndNorms(const float* qkv, std::span<const int64_t> positions,
                                    const HeadShape& shape, std::span<const float> thetas,
                                    const HeadNorms& norms, float* q, float* k, float* normed_q,
                                    float* normed_k) {
  if (!norms.before_rotation) {
    return Backend::RopeAndNorms(qkv, positions, shape, thetas, norms, q, k, normed_q, normed_k);
  }
  std::vector<float> normed(qkv, qkv + std::ssize(positions) * shape.row());
  for (size_t m = 0; m < positions.size(); ++m) {
    float* heads = normed.data() + m * shape.row();
    float* keys = heads + shape.q_row();
    Norm(heads, shape.heads, shape.head_dim, norms.q, heads);
    Norm(keys, shape.kv_heads, shape.head_dim, norms.k, keys);
  }
  Rope(normed.data(), positions, shape, thetas, normed_q, normed_k);
}

}  // namespace polysketch::reference
