// The learned sketch in one kernel: norm, product, gelu, product, twice for each branch, and the
// product of the branches, with nothing stored in device memory in between. Two kernels, which give
// a row the same bits: few rows by the shortest chain of steps, many with the fewest instructions.
#include <algorithm>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/learned_sketch_few.cuh"
#include "kernels/cuda/learned_sketch_many.cuh"

namespace polysketch::cuda {
namespace {

// Tiles of 16 rows for each multiprocessor up to which SketchFewKernel, one tile after the other,
// takes no longer than a warp of SketchManyKernel takes for its first rows.
constexpr int kFewTiles = 4;
// Shared memory of the devices that have most of it: kernels that need more are not compiled.
constexpr int64_t kLargestShared = 227 << 10;

template <int D, int R, bool kBf16>
bool LaunchFor(Device* device, const NetworkWeights& net, const float* x, int64_t rows,
               float* out) {
  using Few = SketchFew<D, R>;
  using Many = SketchMany<D, R>;
  const int64_t sms = device->multiprocessors();
  const int64_t tiles = CeilDiv(rows, Few::kRows), units = CeilDiv(rows, Many::kRows);
  const dim3 grid(static_cast<unsigned>(std::min(units, sms)));
  if constexpr (Few::kShared <= kLargestShared) {
    if (tiles <= kFewTiles * sms && Few::kShared <= device->shared_limit()) {
      device->LaunchDependent(SketchFewKernel<D, R, kBf16>,
                              dim3(static_cast<unsigned>(std::min(tiles, sms))), Few::kThreads,
                              Few::kShared, net, x, rows, out);
      return true;
    }
  }
  if constexpr (Many::Shared(true) <= kLargestShared) {
    if (Many::Shared(true) <= device->shared_limit()) {
      device->LaunchDependent(SketchManyKernel<D, R, kBf16, true>, grid, Many::kThreads,
                              Many::Shared(true), net, x, rows, out);
      return true;
    }
  }
  if (Many::Shared(false) > device->shared_limit()) return false;
  device->LaunchDependent(SketchManyKernel<D, R, kBf16, false>, grid, Many::kThreads,
                          Many::Shared(false), net, x, rows, out);
  return true;
}

template <int D, bool kBf16>
bool LaunchFor(int r, Device* device, const NetworkWeights& net, const float* x, int64_t rows,
               float* out) {
  switch (r) {
    case 16:
      return LaunchFor<D, 16, kBf16>(device, net, x, rows, out);
    case 32:
      return LaunchFor<D, 32, kBf16>(device, net, x, rows, out);
    case 64:
      return LaunchFor<D, 64, kBf16>(device, net, x, rows, out);
    default:
      return false;
  }
}

template <bool kBf16>
bool LaunchFor(int d, int r, Device* device, const NetworkWeights& net, const float* x,
               int64_t rows, float* out) {
  switch (d) {
    case 32:
      return LaunchFor<32, kBf16>(r, device, net, x, rows, out);
    case 64:
      return LaunchFor<64, kBf16>(r, device, net, x, rows, out);
    case 128:
      return LaunchFor<128, kBf16>(r, device, net, x, rows, out);
    default:
      return false;
  }
}

}  // namespace

bool CudaBackend::LearnedSketchFused(const SketchNetwork& net, const float* x, int64_t rows,
                                     float* out) {
  const CudaMatrix& first = Cast(*net.branch[0][0].up);
  if (!first.half()) return false;
  NetworkWeights weights;
  for (int branch = 0; branch < 2; ++branch) {
    for (int level = 0; level < 2; ++level) {
      const SketchNetwork::Level& from = net.branch[branch][level];
      const CudaMatrix &up = Cast(*from.up), &down = Cast(*from.down);
      if (up.type() != first.type() || down.type() != first.type()) return false;
      weights.level[branch][level] = {from.norm.scale,
                                      from.norm.bias,
                                      up.halves(),
                                      down.halves(),
                                      static_cast<int>(up.padded_out()),
                                      static_cast<int>(down.padded_out())};
    }
  }
  return first.type() == DataType::kBf16
             ? LaunchFor<true>(net.input, net.size, device_.get(), weights, x, rows, out)
             : LaunchFor<false>(net.input, net.size, device_.get(), weights, x, rows, out);
}

}  // namespace polysketch::cuda
