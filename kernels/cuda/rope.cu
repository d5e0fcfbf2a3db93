#include "base/check.h"
#include "kernels/angles.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/ptx.cuh"

namespace polysketch::cuda {
namespace {

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

}  // namespace

void CudaBackend::ComputeAngles(int head_dim) {
  angle_dim_ = head_dim;
  const float* thetas = Thetas(&rope_thetas_, head_dim, RopeThetas);
  const int64_t rows = std::ssize(host_positions_);
  float* cos_sin = cos_sin_.Grow(device_.get(), rows * head_dim);
  device_->Launch(AnglesKernel, dim3(CeilDiv(rows * (head_dim / 2), 128)), 128, 0,
                  positions_.data(), rows, head_dim, thetas, cos_sin);
}

void CudaBackend::Rope(const float* qkv, std::span<const int64_t> positions, int heads,
                       int head_dim, float* q, float* k) {
  PS_CHECK(head_dim % 2 == 0) << head_dim;
  const int64_t rows = std::ssize(positions);
  UpdatePositions(positions);
  UpdateAngles(head_dim);
  device_->Launch(RopeKernel, dim3(CeilDiv(rows * heads * head_dim, 128)), 128, 0, qkv, rows,
                  cos_sin_.data(), heads, head_dim, q, k);
}

}  // namespace polysketch::cuda
