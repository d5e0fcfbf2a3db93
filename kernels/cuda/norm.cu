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
    LongNormKernel(const float* x, int64_t rows, int width, const NormWeights norm, bool aligned,
                   float* out) {
  AfterEarlierKernels();
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * (kThreads / kWarpSize) + threadIdx.x / kWarpSize;
  if (row >= rows) return;
  const float* from = x + row * width;
  const RowStatistics of_row = StatisticsOf<1>(from, width, norm, aligned, nullptr);
  for (int i = 4 * static_cast<int>(threadIdx.x % kWarpSize); i < width; i += 4 * kWarpSize) {
    StoreQuad(LoadNormed(from, i, width, norm, aligned, of_row), i, width, aligned,
              out + row * width);
  }
}

// The norm of rows, rounded to 16 bits: out [rows, padded], zero from `width` on.
template <bool kBf16, bool kLong>
__global__ void __launch_bounds__(kThreads)
    NormHalvesKernel(const float* x, int64_t rows, int width, const NormWeights norm, bool aligned,
                     int padded, uint16_t* out) {
  AfterEarlierKernels();
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * (kThreads / kWarpSize) + threadIdx.x / kWarpSize;
  if (row >= rows) return;
  const float* from = x + row * width;
  uint16_t* to = out + row * padded;
  if constexpr (kLong) {
    LongNormToHalves<1, kBf16>(from, width, norm, aligned, padded, to, nullptr);
  } else {
    NormRowToHalves<kBf16>(from, width, norm, aligned, padded, to);
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
    launch(LongNormKernel, kWarpSize);
  }
}

uint16_t* CudaBackend::NormToHalves(const float* x, int64_t rows, const NormWeights& norm,
                                    const CudaMatrix& w) {
  const int width = static_cast<int>(w.in()), padded = static_cast<int>(w.padded_in());
  uint16_t* out = halves_.Grow(device_.get(), rows * padded);
  const bool is_long = width > kRegisterNorm;
  const auto launch = [&](auto* kernel) {
    device_->LaunchDependent(kernel, dim3(CeilDiv(rows, kThreads / kWarpSize)), kThreads, 0, x,
                             rows, width, norm, AlignedQuads(width, {x, norm.scale, norm.bias}),
                             padded, out);
  };
  if (w.type() == DataType::kBf16) {
    launch(is_long ? NormHalvesKernel<true, true> : NormHalvesKernel<true, false>);
  } else {
    launch(is_long ? NormHalvesKernel<false, true> : NormHalvesKernel<false, false>);
  }
  return out;
}

}  // namespace polysketch::cuda
