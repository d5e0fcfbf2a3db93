#include "kernels/cuda/backend.h"
#include "kernels/cuda/norm_row.cuh"

namespace polysketch::cuda {
namespace {

constexpr int kThreads = 128;

// kLanes lanes for each row. A lane reads only the elements that it writes, so out may be x.
template <int kLanes, int kQuads>
__global__ void __launch_bounds__(kThreads)
    NormKernel(const float* x, int64_t rows, int width, const NormWeights norm, bool aligned,
               float* out) {
  AfterEarlierKernels();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * (kThreads / kLanes) +
                        static_cast<int>(threadIdx.x) / kLanes;
  const int64_t row = index < rows ? index : rows - 1;
  const int first = 4 * static_cast<int>(threadIdx.x % kLanes);
  Quad values[kQuads];
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    values[q] = LoadQuad(x + row * width, first + 4 * kLanes * q, width, aligned);
  }
  NormQuads<kLanes>(width, norm, aligned, values);
  if (index >= rows) return;
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    StoreQuad(values[q], first + 4 * kLanes * q, width, aligned, out + row * width);
  }
}

// One warp for each row, which it reads three times.
__global__ void __launch_bounds__(kThreads)
    LongNormKernel(const float* x, int64_t rows, int width, const NormWeights norm, float* out) {
  AfterEarlierKernels();
  const int lane = threadIdx.x % kWarpSize;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * (kThreads / kWarpSize) + threadIdx.x / kWarpSize;
  if (row >= rows) return;
  const float* from = x + row * width;
  float* to = out + row * width;
  const bool centres = norm.kind == NormKind::kLayer;
  float sum = 0;
  for (int i = lane; centres && i < width; i += kWarpSize) sum += from[i];
  const float mean = WarpSum(sum) / static_cast<float>(width);
  float squares = 0;
  for (int i = lane; i < width; i += kWarpSize) {
    const float centred = from[i] - mean;
    squares = fmaf(centred, centred, squares);
  }
  const float inverse = InverseDeviation(WarpSum(squares), width, norm.epsilon);
  for (int i = lane; i < width; i += kWarpSize) {
    to[i] = fmaf((from[i] - mean) * inverse, norm.scale[i], centres ? norm.bias[i] : 0.0f);
  }
}

// The norm of rows of at most kRegisterNorm elements, rounded to 16 bits: out [rows, padded], zero
// from `width` on.
template <bool kBf16>
__global__ void __launch_bounds__(kThreads)
    NormHalvesKernel(const float* x, int64_t rows, int width, const NormWeights norm, bool aligned,
                     int padded, uint16_t* out) {
  AfterEarlierKernels();
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * (kThreads / kWarpSize) + threadIdx.x / kWarpSize;
  if (row < rows) {
    NormRowToHalves<kBf16>(x + row * width, width, norm, aligned, padded, out + row * padded);
  }
}

}  // namespace

void CudaBackend::Norm(const float* x, int64_t rows, int width, const NormWeights& norm,
                       float* out) {
  const bool aligned = AlignedQuads(width, {x, out, norm.scale, norm.bias});
  const auto launch = [&](auto* kernel, int lanes) {
    device_->LaunchDependent(kernel, dim3(CeilDiv(rows, kThreads / lanes)), kThreads, 0, x, rows,
                             width, norm, aligned, out);
  };
  if (width <= kNarrowNorm) {
    launch(NormKernel<16, 1>, 16);
  } else if (width <= kHeadNorm) {
    launch(NormKernel<kWarpSize, 1>, kWarpSize);
  } else if (width <= kRegisterNorm) {
    launch(NormKernel<kWarpSize, kRowQuads>, kWarpSize);
  } else {
    device_->LaunchDependent(LongNormKernel, dim3(CeilDiv(rows, kThreads / kWarpSize)), kThreads, 0,
                             x, rows, width, norm, out);
  }
}

bool NormsToHalves(int64_t width) { return width <= kRegisterNorm; }

uint16_t* CudaBackend::NormToHalves(const float* x, int64_t rows, const NormWeights& norm,
                                    const CudaMatrix& w) {
  const int width = static_cast<int>(w.in()), padded = static_cast<int>(w.padded_in());
  uint16_t* out = halves_.Grow(device_.get(), rows * padded);
  device_->LaunchDependent(
      w.type() == DataType::kBf16 ? NormHalvesKernel<true> : NormHalvesKernel<false>,
      dim3(CeilDiv(rows, kThreads / kWarpSize)), kThreads, 0, x, rows, width, norm,
      AlignedQuads(width, {x, norm.scale, norm.bias}), padded, out);
  return out;
}

}  // namespace polysketch::cuda
