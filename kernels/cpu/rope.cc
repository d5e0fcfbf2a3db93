#include <algorithm>

#include "base/check.h"
#include "kernels/angles.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/row_ops.h"

#include "kernels/cpu/isa_begin.inc"

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

void CpuBackend::UpdateAngles(std::span<const int64_t> positions, std::span<const float> thetas) {
  if (thetas.empty()) return;
  const bool same_thetas = rope_rotations_ && std::ranges::equal(thetas, rope_rotations_->thetas());
  if (same_thetas && std::ranges::equal(positions, angle_positions_)) return;
  if (!same_thetas) rope_rotations_.emplace(std::vector<float>(thetas.begin(), thetas.end()));
  angle_positions_.assign(positions.begin(), positions.end());
  const int64_t half = std::ssize(thetas);
  cos_sin_.resize(positions.size() * 2 * half);
  context_.ParallelRows(std::ssize(positions), 4, [&](int64_t first, int64_t last, int) {
    Rotations::Start start;
    for (int64_t m = first; m < last; ++m) {
      float* row = cos_sin_.data() + m * 2 * half;
      rope_rotations_->CosSin(positions[m], &start, row, row + half);
    }
  });
}

void CpuBackend::RotateHeads(const float* x, int64_t token, int heads, int head_dim, bool rotates,
                             float* out) const {
  if (!rotates) {
    std::copy_n(x, int64_t{heads} * head_dim, out);
    return;
  }
  const float* cosines = cos_sin_.data() + token * head_dim;
  const float* sines = cosines + head_dim / 2;
  for (int h = 0; h < heads; ++h, x += head_dim, out += head_dim) {
    RotateHead(x, cosines, sines, head_dim / 2, out);
  }
}

void CpuBackend::Rope(const float* qkv, std::span<const int64_t> positions, const HeadShape& shape,
                      std::span<const float> thetas, float* q, float* k) {
  const int d = shape.head_dim;
  PS_CHECK(thetas.empty() || 2 * std::ssize(thetas) == d) << d;
  UpdateAngles(positions, thetas);
  const bool rotates = !thetas.empty();
  context_.ParallelRows(std::ssize(positions), 8, [&](int64_t first, int64_t last, int) {
    for (int64_t m = first; m < last; ++m) {
      const float* row = qkv + m * shape.row();
      RotateHeads(row, m, shape.heads, d, rotates, q + m * shape.q_row());
      RotateHeads(row + shape.q_row(), m, shape.kv_heads, d, rotates, k + m * shape.k_row());
    }
  });
}

// The norms read a token's heads while they are in L1.
void CpuBackend::RopeAndNorms(const float* qkv, std::span<const int64_t> positions,
                              const HeadShape& shape, std::span<const float> thetas,
                              const HeadNorms& norms, float* q, float* k, float* normed_q,
                              float* normed_k) {
  const int d = shape.head_dim;
  PS_CHECK(thetas.empty() || 2 * std::ssize(thetas) == d) << d;
  UpdateAngles(positions, thetas);
  const bool rotates = !thetas.empty();
  const auto run = [&](int64_t m, const float* x, int heads, const NormWeights& norm,
                       float* rotated, float* normed, float* scratch) {
    if (norms.before_rotation) {
      NormRows(x, d, heads, d, norm, scratch, d);
      RotateHeads(scratch, m, heads, d, rotates, normed);
    } else {
      RotateHeads(x, m, heads, d, rotates, rotated);
      NormRows(rotated, d, heads, d, norm, normed, d);
    }
  };
  context_.ParallelRows(std::ssize(positions), 8, [&](int64_t first, int64_t last, int thread) {
    float* scratch = norms.before_rotation
                         ? context_.Scratch(thread, std::max(shape.q_row(), shape.k_row()))
                         : nullptr;
    for (int64_t m = first; m < last; ++m) {
      const float* row = qkv + m * shape.row();
      const int64_t at_q = m * shape.q_row(), at_k = m * shape.k_row();
      run(m, row, shape.heads, norms.q, q + at_q, normed_q + at_q, scratch);
      run(m, row + shape.q_row(), shape.kv_heads, norms.k, k + at_k, normed_k + at_k, scratch);
    }
  });
}

#include "kernels/cpu/isa_end.inc"
