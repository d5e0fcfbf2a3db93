#include <algorithm>

#include "kernels/angles.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/row_ops.h"

#include "kernels/cpu/isa_begin.h"

namespace {

// Reads pairs, writes halves. Products and sums are rounded separately, as in the definition.
void RotateHead(const float* x, const float* cosines, const float* sines, int half, float* out) {
  for (int i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    out[i] = a * cosines[i] - b * sines[i];
    out[half + i] = b * cosines[i] + a * sines[i];
  }
}

}  // namespace

void CpuBackend::UpdateAngles(std::span<const int64_t> positions, int head_dim) {
  if (head_dim == angle_dim_ && std::equal(positions.begin(), positions.end(),
                                           angle_positions_.begin(), angle_positions_.end())) {
    return;
  }
  if (head_dim != angle_dim_) rope_rotations_.emplace(RopeThetas(head_dim));
  angle_dim_ = head_dim;
  angle_positions_.assign(positions.begin(), positions.end());
  cos_sin_.resize(positions.size() * head_dim);
  context_.ParallelRows(std::ssize(positions), 4, [&](int64_t first, int64_t last, int) {
    Rotations::Start start;
    for (int64_t m = first; m < last; ++m) {
      float* row = cos_sin_.data() + m * head_dim;
      rope_rotations_->CosSin(positions[m], &start, row, row + head_dim / 2);
    }
  });
}

void CpuBackend::RotateToken(const float* qkv, int64_t token, int heads, int head_dim, float* q,
                             float* k) const {
  const int64_t width = static_cast<int64_t>(heads) * head_dim;
  const int half = head_dim / 2;
  const float* cosines = cos_sin_.data() + token * head_dim;
  for (int h = 0; h < heads; ++h) {
    const float* source = qkv + token * 3 * width + h * head_dim;
    const int64_t target = token * width + h * head_dim;
    RotateHead(source, cosines, cosines + half, half, q + target);
    RotateHead(source + width, cosines, cosines + half, half, k + target);
  }
}

void CpuBackend::Rope(const float* qkv, std::span<const int64_t> positions, int heads, int head_dim,
                      float* q, float* k) {
  UpdateAngles(positions, head_dim);
  context_.ParallelRows(std::ssize(positions), 8, [&](int64_t first, int64_t last, int) {
    for (int64_t m = first; m < last; ++m) RotateToken(qkv, m, heads, head_dim, q, k);
  });
}

// The norms read a token's heads while they are in L1.
void CpuBackend::RopeAndNorms(const float* qkv, std::span<const int64_t> positions, int heads,
                              int head_dim, const NormWeights& q_norm, const NormWeights& k_norm,
                              float* q, float* k, float* normed_q, float* normed_k) {
  UpdateAngles(positions, head_dim);
  context_.ParallelRows(std::ssize(positions), 8, [&](int64_t first, int64_t last, int) {
    for (int64_t m = first; m < last; ++m) {
      const int64_t at = m * heads * head_dim;
      RotateToken(qkv, m, heads, head_dim, q, k);
      LayerNormRows(q + at, head_dim, heads, head_dim, q_norm, normed_q + at, head_dim);
      LayerNormRows(k + at, head_dim, heads, head_dim, k_norm, normed_k + at, head_dim);
    }
  });
}

#include "kernels/cpu/isa_end.h"
