#include <algorithm>

#include "base/check.h"
#include "kernels/angles.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/norm_row.cuh"

namespace polysketch::cuda {
namespace {

constexpr int kNormThreads = 128;

__global__ void AnglesKernel(const int64_t* positions, int64_t rows, int head_dim,
                             const float* thetas, float* cos_sin) {
  const int half = head_dim / 2;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * half) return;
  const int64_t m = i / half;
  const int pair = static_cast<int>(i % half);
  // Exact in float64: theta is a float32.
  const double angle = static_cast<double>(thetas[pair]) * static_cast<double>(positions[m]);
  cos_sin[m * head_dim + pair] = static_cast<float>(cos(angle));
  cos_sin[m * head_dim + half + pair] = static_cast<float>(sin(angle));
}

// One thread for each pair of a head of q or k.
__global__ void RopeKernel(const float* qkv, int64_t rows, const float* cos_sin, int heads,
                           int head_dim, float* q, float* k) {
  const int half = head_dim / 2;
  const int64_t pairs = static_cast<int64_t>(heads) * half;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * 2 * pairs) return;
  const int64_t m = i / (2 * pairs);
  const int part = static_cast<int>(i / pairs % 2);
  const int64_t width = static_cast<int64_t>(heads) * head_dim;
  const int64_t head = i % pairs / half;
  const int pair = static_cast<int>(i % half);
  const float* x = qkv + (m * 3 + part) * width + head * head_dim + 2 * pair;
  const float c = cos_sin[m * head_dim + pair], s = cos_sin[m * head_dim + half + pair];
  float* out = (part == 0 ? q : k) + m * width + head * head_dim + pair;
  out[0] = fmaf(x[0], c, -(x[1] * s));
  out[half] = fmaf(x[1], c, x[0] * s);
}

// A row is a head of q or k, with kLanes lanes. A lane rotates four neighbouring elements of the
// result, which take eight of the input; its norm then is that of LayerNorm. Only for head_dim of
// whole groups of eight, at most 4 kLanes.
struct RopeNorms {
  const float* qkv;
  const float* cos_sin;
  const float *q_scale, *q_bias, *k_scale, *k_bias;
  float *q, *k, *normed_q, *normed_k;
  uint16_t *bf16_q, *bf16_k;  // in place of normed_q and normed_k, if they are not null
  int64_t rows;
  int heads, head_dim;
};

template <int kLanes>
__global__ void __launch_bounds__(kNormThreads) RopeNormKernel(const RopeNorms p) {
  AfterEarlierKernels();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * (kNormThreads / kLanes) +
                        static_cast<int>(threadIdx.x) / kLanes;
  const int64_t rows = 2 * p.rows * p.heads;
  const int64_t row = index < rows ? index : rows - 1;
  const int64_t m = row / (2 * p.heads);
  const int part = static_cast<int>(row / p.heads % 2), head = static_cast<int>(row % p.heads);
  const int half = p.head_dim / 2, i = 4 * static_cast<int>(threadIdx.x % kLanes);
  const float* x = p.qkv + ((m * 3 + part) * p.heads + head) * p.head_dim;
  Quad values[1] = {};
  if (i < p.head_dim) {
    const int pair = i < half ? i : i - half;
    const Quad cosines = LoadQuad(p.cos_sin + m * p.head_dim, pair, half, true);
    const Quad sines = LoadQuad(p.cos_sin + m * p.head_dim + half, pair, half, true);
    const Quad first = LoadQuad(x, 2 * pair, p.head_dim, true);
    const Quad second = LoadQuad(x, 2 * pair + 4, p.head_dim, true);
    for (int c = 0; c < 4; ++c) {
      const float even = c < 2 ? first.v[2 * c] : second.v[2 * c - 4];
      const float odd = c < 2 ? first.v[2 * c + 1] : second.v[2 * c - 3];
      values[0].v[c] = i < half ? fmaf(even, cosines.v[c], -(odd * sines.v[c]))
                                : fmaf(odd, cosines.v[c], even * sines.v[c]);
    }
  }
  const int64_t at = (m * p.heads + head) * p.head_dim;
  float* out = (part == 0 ? p.q : p.k) + at;
  uint16_t* bf16 = part == 0 ? p.bf16_q : p.bf16_k;
  float* normed = (part == 0 ? p.normed_q : p.normed_k) + at;
  if (index < rows && (bf16 != nullptr || out != normed))
    StoreQuad(values[0], i, p.head_dim, true, out);
  NormQuads<kLanes>(p.head_dim, part == 0 ? p.q_scale : p.k_scale, part == 0 ? p.q_bias : p.k_bias,
                    true, values);
  if (index >= rows) return;
  if (bf16 == nullptr) {
    StoreQuad(values[0], i, p.head_dim, true, normed);
  } else if (i < p.head_dim) {
    StoreHalves<true>(values[0], p.head_dim - i, bf16 + at + i);
  }
}

}  // namespace

void CudaBackend::RopeAndNorms(const float* qkv, std::span<const int64_t> positions,
                               const HeadShape& shape, std::span<const float> thetas,
                               const HeadNorms& norms, float* q, float* k, float* normed_q,
                               float* normed_k) {
  if (norms.before_rotation ||
      !NormsHeads(shape.head_dim, {qkv, q, k, normed_q, normed_k, norms.q.scale, norms.q.bias,
                                   norms.k.scale, norms.k.bias})) {
    return Backend::RopeAndNorms(qkv, positions, shape, thetas, norms, q, k, normed_q, normed_k);
  }
  RopeAndHeadNorms(qkv, positions, shape, thetas, norms, q, k, {.floats = {normed_q, normed_k}});
}

void CudaBackend::CheckRope(const HeadShape& shape, std::span<const float> thetas) {
  PS_CHECK(shape.head_dim % 2 == 0) << shape.head_dim;
  PS_CHECK(shape.kv_heads == shape.heads) << "BackendFeature::kGroupedQueries";
  const int half = shape.head_dim / 2;
  if (std::ssize(checked_thetas_) != half) checked_thetas_ = RopeThetas(shape.head_dim);
  PS_CHECK(std::equal(thetas.begin(), thetas.end(), checked_thetas_.begin(), checked_thetas_.end()))
      << "BackendFeature::kRopeThetas";
}

bool CudaBackend::NormsHeads(int head_dim, std::initializer_list<const void*> arrays) {
  return head_dim % 8 == 0 && head_dim <= kHeadNorm && AlignedQuads(head_dim, arrays);
}

void CudaBackend::RopeAndHeadNorms(const float* qkv, std::span<const int64_t> positions,
                                   const HeadShape& shape, std::span<const float> thetas,
                                   const HeadNorms& norms, float* q, float* k,
                                   const NormedHeads& normed) {
  CheckRope(shape, thetas);
  PS_CHECK(HasNorm(norms.q) && HasNorm(norms.k)) << "BackendFeature::kRmsNorm";
  const int heads = shape.heads, head_dim = shape.head_dim;
  UpdatePositions(positions);
  UpdateAngles(head_dim);
  const RopeNorms p{qkv,
                    cos_sin_.data(),
                    norms.q.scale,
                    norms.q.bias,
                    norms.k.scale,
                    norms.k.bias,
                    q,
                    k,
                    normed.floats[0],
                    normed.floats[1],
                    normed.bf16[0],
                    normed.bf16[1],
                    std::ssize(positions),
                    heads,
                    head_dim};
  const bool narrow = head_dim <= kNarrowNorm;
  const int lanes = narrow ? 16 : kWarpSize;
  device_->LaunchDependent(narrow ? RopeNormKernel<16> : RopeNormKernel<kWarpSize>,
                           dim3(CeilDiv(2 * p.rows * heads, kNormThreads / lanes)), kNormThreads, 0,
                           p);
}

void CudaBackend::ComputeAngles(int head_dim) {
  angle_dim_ = head_dim;
  const float* thetas = Thetas(&rope_thetas_, head_dim, [](int dim) { return RopeThetas(dim); });
  const int64_t rows = std::ssize(host_positions_);
  float* cos_sin = cos_sin_.Grow(device_.get(), rows * head_dim);
  device_->Launch(AnglesKernel, dim3(CeilDiv(rows * (head_dim / 2), 128)), 128, 0,
                  positions_.data(), rows, head_dim, thetas, cos_sin);
}

void CudaBackend::Rope(const float* qkv, std::span<const int64_t> positions, const HeadShape& shape,
                       std::span<const float> thetas, float* q, float* k) {
  CheckRope(shape, thetas);
  const int heads = shape.heads, head_dim = shape.head_dim;
  const int64_t rows = std::ssize(positions);
  UpdatePositions(positions);
  UpdateAngles(head_dim);
  device_->Launch(RopeKernel, dim3(CeilDiv(rows * heads * head_dim, 128)), 128, 0, qkv, rows,
                  cos_sin_.data(), heads, head_dim, q, k);
}

}  // namespace polysketch::cuda
