#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/rotated_heads.cuh"

namespace polysketch::cuda {
namespace {

constexpr int kNormThreads = 128;

__global__ void AnglesKernel(const int64_t* positions, int64_t rows, int head_dim,
                             const float* thetas, float* cos_sin) {
  AfterEarlierKernels();
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

// One thread for each element of a head of q or k.
__global__ void RopeKernel(const HeadRows heads, float* q, float* k) {
  AfterEarlierKernels();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= heads.count() * heads.head_dim) return;
  const HeadRow row(heads, index / heads.head_dim);
  const int i = static_cast<int>(index % heads.head_dim), half = heads.head_dim / 2;
  float* out = (row.is_key ? k : q) + row.to + i;
  if (heads.cos_sin == nullptr) {
    *out = row.from[i];
    return;
  }
  const int pair = i < half ? i : i - half;
  const float* cosines = heads.cos_sin + row.token * heads.head_dim;
  const float even = row.from[2 * pair], odd = row.from[2 * pair + 1];
  *out = i < half ? RotatedFirst(even, odd, cosines[pair], cosines[half + pair])
                  : RotatedSecond(even, odd, cosines[pair], cosines[half + pair]);
}

// The norm of each head of q and k, rotated. A row has kLanes lanes of kQuads quads of the input,
// each two pairs.
template <int kLanes, int kQuads>
__global__ void __launch_bounds__(kNormThreads)
    NormRopeKernel(const HeadRows heads, const NormWeights q_norm, const NormWeights k_norm,
                   bool aligned, float* q, float* k) {
  AfterEarlierKernels();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * (kNormThreads / kLanes) +
                        static_cast<int>(threadIdx.x) / kLanes;
  const HeadRow row(heads, index < heads.count() ? index : heads.count() - 1);
  const int d = heads.head_dim, half = d / 2;
  const int first = 4 * static_cast<int>(threadIdx.x % kLanes);
  Quad values[kQuads];
#pragma unroll
  for (int n = 0; n < kQuads; ++n) {
    values[n] = LoadQuad(row.from, first + 4 * kLanes * n, d, aligned);
  }
  NormQuads<kLanes>(d, row.is_key ? k_norm : q_norm, aligned, values);
  if (index >= heads.count()) return;
  float* out = (row.is_key ? k : q) + row.to;
#pragma unroll
  for (int n = 0; n < kQuads; ++n) {
    const int i = first + 4 * kLanes * n;
    if (heads.cos_sin == nullptr) {
      StoreQuad(values[n], i, d, aligned, out);
      continue;
    }
    const float* cosines = heads.cos_sin + row.token * d;
#pragma unroll
    for (int c = 0; c < 4; c += 2) {
      if (i + c >= d) continue;
      const int pair = (i + c) / 2;
      const float even = values[n].v[c], odd = values[n].v[c + 1];
      out[pair] = RotatedFirst(even, odd, cosines[pair], cosines[half + pair]);
      out[half + pair] = RotatedSecond(even, odd, cosines[pair], cosines[half + pair]);
    }
  }
}

// A row is a head of q or k, with kLanes lanes. A lane rotates four neighbouring elements of the
// result, which take eight of the input; its norm then is that of NormKernel. Only for head_dim of
// whole groups of eight, at most 4 kLanes.
struct RopeNorms {
  HeadRows heads;
  NormWeights q_norm, k_norm;
  float *q, *k, *normed_q, *normed_k;
  uint16_t *bf16_q, *bf16_k;  // in place of normed_q and normed_k, if they are not null
};

template <int kLanes>
__global__ void __launch_bounds__(kNormThreads) RopeNormKernel(const RopeNorms p) {
  AfterEarlierKernels();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * (kNormThreads / kLanes) +
                        static_cast<int>(threadIdx.x) / kLanes;
  const int64_t rows = p.heads.count();
  const HeadRow row(p.heads, index < rows ? index : rows - 1);
  const int d = p.heads.head_dim, i = 4 * static_cast<int>(threadIdx.x % kLanes);
  Quad values[1] = {};
  if (i < d) values[0] = LoadRotated(row.from, p.heads.cos_sin + row.token * d, d, i);
  float* out = (row.is_key ? p.k : p.q) + row.to;
  uint16_t* bf16 = row.is_key ? p.bf16_k : p.bf16_q;
  float* normed = (row.is_key ? p.normed_k : p.normed_q) + row.to;
  if (index < rows && (bf16 != nullptr || out != normed)) StoreQuad(values[0], i, d, true, out);
  NormQuads<kLanes>(d, row.is_key ? p.k_norm : p.q_norm, true, values);
  if (index >= rows) return;
  if (bf16 == nullptr) {
    StoreQuad(values[0], i, d, true, normed);
  } else if (i < d) {
    StoreHalves<true>(values[0], d - i, bf16 + row.to + i);
  }
}

}  // namespace

void CudaBackend::RopeAndNorms(const float* qkv, std::span<const int64_t> positions,
                               const HeadShape& shape, std::span<const float> thetas,
                               const HeadNorms& norms, float* q, float* k, float* normed_q,
                               float* normed_k) {
  if (norms.before_rotation) {
    return NormAndRope(qkv, positions, shape, thetas, norms, normed_q, normed_k);
  }
  if (thetas.empty() || !NormsHeads(shape.head_dim, {qkv, q, k, normed_q, normed_k, norms.q.scale,
                                                     norms.q.bias, norms.k.scale, norms.k.bias})) {
    return Backend::RopeAndNorms(qkv, positions, shape, thetas, norms, q, k, normed_q, normed_k);
  }
  RopeAndHeadNorms(qkv, positions, shape, thetas, norms, q, k, {.floats = {normed_q, normed_k}});
}

bool CudaBackend::NormsHeads(int head_dim, std::initializer_list<const void*> arrays) {
  return head_dim % 8 == 0 && head_dim <= kHeadNorm && AlignedQuads(head_dim, arrays);
}

void CudaBackend::NormAndRope(const float* qkv, std::span<const int64_t> positions,
                              const HeadShape& shape, std::span<const float> thetas,
                              const HeadNorms& norms, float* q, float* k) {
  const int d = shape.head_dim;
  PS_CHECK(d <= kRegisterNorm) << d;
  const HeadRows heads{qkv,
                       UpdateAngles(positions, shape, thetas),
                       std::ssize(positions),
                       shape.heads,
                       shape.kv_heads,
                       d};
  const bool aligned =
      AlignedQuads(d, {qkv, q, k, norms.q.scale, norms.q.bias, norms.k.scale, norms.k.bias});
  const auto launch = [&](auto* kernel, int lanes) {
    device_->LaunchDependent(kernel, dim3(CeilDiv(heads.count(), kNormThreads / lanes)),
                             kNormThreads, 0, heads, norms.q, norms.k, aligned, q, k);
  };
  if (d <= kNarrowNorm) {
    launch(NormRopeKernel<16, 1>, 16);
  } else if (d <= kHeadNorm) {
    launch(NormRopeKernel<kWarpSize, 1>, kWarpSize);
  } else {
    launch(NormRopeKernel<kWarpSize, kRowQuads>, kWarpSize);
  }
}

void CudaBackend::RopeAndHeadNorms(const float* qkv, std::span<const int64_t> positions,
                                   const HeadShape& shape, std::span<const float> thetas,
                                   const HeadNorms& norms, float* q, float* k,
                                   const NormedHeads& normed) {
  const RopeNorms p{{qkv, UpdateAngles(positions, shape, thetas), std::ssize(positions),
                     shape.heads, shape.kv_heads, shape.head_dim},
                    norms.q,
                    norms.k,
                    q,
                    k,
                    normed.floats[0],
                    normed.floats[1],
                    normed.bf16[0],
                    normed.bf16[1]};
  const bool narrow = shape.head_dim <= kNarrowNorm;
  const int lanes = narrow ? 16 : kWarpSize;
  device_->LaunchDependent(narrow ? RopeNormKernel<16> : RopeNormKernel<kWarpSize>,
                           dim3(CeilDiv(p.heads.count(), kNormThreads / lanes)), kNormThreads, 0,
                           p);
}

void CudaBackend::ComputeAngles(std::span<const float> thetas) {
  std::vector<float> host(thetas.begin(), thetas.end());
  DeviceArray<float>& on_device = rope_thetas_[host];
  if (on_device.size() == 0) {
    on_device = DeviceArray<float>(device_.get(), host.size());
    device_->CopyIn(on_device.data(), host.data(), host.size() * sizeof(float));
  }
  angles_of_ = std::move(host);
  const int half = static_cast<int>(thetas.size());
  const int64_t rows = std::ssize(host_positions_);
  float* cos_sin = cos_sin_.Grow(device_.get(), rows * 2 * half);
  device_->LaunchDependent(AnglesKernel, dim3(CeilDiv(rows * half, 128)), 128, 0, positions_.data(),
                           rows, 2 * half, on_device.data(), cos_sin);
}

const float* CudaBackend::UpdateAngles(std::span<const int64_t> positions, const HeadShape& shape,
                                       std::span<const float> thetas) {
  if (thetas.empty()) return nullptr;
  PS_CHECK(shape.head_dim == 2 * std::ssize(thetas)) << shape.head_dim;
  UpdatePositions(positions);
  if (!std::ranges::equal(angles_of_, thetas)) ComputeAngles(thetas);
  return cos_sin_.data();
}

void CudaBackend::Rope(const float* qkv, std::span<const int64_t> positions, const HeadShape& shape,
                       std::span<const float> thetas, float* q, float* k) {
  const HeadRows heads{qkv,
                       UpdateAngles(positions, shape, thetas),
                       std::ssize(positions),
                       shape.heads,
                       shape.kv_heads,
                       shape.head_dim};
  device_->LaunchDependent(RopeKernel, dim3(CeilDiv(heads.count() * heads.head_dim, 128)), 128, 0,
                           heads, q, k);
}

}  // namespace polysketch::cuda
