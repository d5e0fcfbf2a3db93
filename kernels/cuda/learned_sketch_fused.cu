// The learned sketch in one kernel: norm, product, gelu, product, twice for each branch, and the
// product of the branches, with nothing stored in device memory in between. Two kernels, which give
// a row the same bits: few rows by the shortest chain of steps, many with the fewest instructions.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/learned_sketch_few.cuh"
#include "kernels/cuda/learned_sketch_many.cuh"
#include "kernels/cuda/learned_sketch_step.cuh"

namespace polysketch::cuda {
namespace {

// Tiles of 16 rows for each multiprocessor up to which SketchFewKernel, one tile after the other,
// takes no longer than a warp of SketchManyKernel takes for its first rows.
constexpr int kFewTiles = 4;
// Shared memory of the devices that have most of it: kernels that need more are not compiled.
constexpr int64_t kLargestShared = 227 << 10;

// Whether SketchFewKernel takes `rows` rows with `shared` bytes of shared memory besides its own.
template <int D, int R>
bool TakesFew(Device* device, int64_t rows, int64_t shared) {
  using Few = SketchFew<D, R>;
  return CeilDiv(rows, Few::kRows) <= static_cast<int64_t>(kFewTiles) * device->multiprocessors() &&
         Few::kShared + shared <= std::min(kLargestShared, device->shared_limit());
}

template <int D, int R, bool kBf16, typename Rows>
void LaunchFew(Device* device, const NetworkWeights& net, const Rows& rows) {
  using Few = SketchFew<D, R>;
  const int64_t tiles = CeilDiv(rows.count, Few::kRows), sms = device->multiprocessors();
  device->LaunchDependent(SketchFewKernel<D, R, kBf16, Rows>,
                          dim3(static_cast<unsigned>(std::min(tiles, sms))), Few::kThreads,
                          Few::kShared + Rows::kShared, net, rows);
}

template <int D, int R, bool kBf16>
bool LaunchFor(Device* device, const NetworkWeights& net, const float* x, int64_t rows,
               const SketchOutput& out) {
  using Few = SketchFew<D, R>;
  using Many = SketchMany<D, R>;
  const int64_t sms = device->multiprocessors();
  const int64_t units = CeilDiv(rows, Many::kRows);
  const dim3 grid(static_cast<unsigned>(std::min(units, sms)));
  if constexpr (Few::kShared <= kLargestShared) {
    if (TakesFew<D, R>(device, rows, 0)) {
      LaunchFew<D, R, kBf16>(device, net, BatchRows<D, R>{x, rows, out});
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

// Calls run.operator()<D, R>() and returns its result, or false for sizes without kernels.
template <typename Run>
bool WithSizes(int d, int r, const Run& run) {
  const auto with_input = [&]<int D>() {
    switch (r) {
      case 16:
        return run.template operator()<D, 16>();
      case 32:
        return run.template operator()<D, 32>();
      case 64:
        return run.template operator()<D, 64>();
      default:
        return false;
    }
  };
  switch (d) {
    case 32:
      return with_input.template operator()<32>();
    case 64:
      return with_input.template operator()<64>();
    case 128:
      return with_input.template operator()<128>();
    default:
      return false;
  }
}

// The format of all matrices of a network, or float32 if they differ.
DataType FormatOf(const SketchNetwork& net) {
  const DataType first = net.branch[0][0].up->type();
  for (const auto& branch : net.branch) {
    for (const SketchNetwork::Level& level : branch) {
      if (level.up->type() != first || level.down->type() != first) return DataType::kF32;
    }
  }
  return first;
}

NetworkWeights WeightsOf(const SketchNetwork& net) {
  NetworkWeights weights;
  for (int branch = 0; branch < 2; ++branch) {
    for (int level = 0; level < 2; ++level) {
      const SketchNetwork::Level& from = net.branch[branch][level];
      const CudaMatrix &up = Cast(*from.up), &down = Cast(*from.down);
      weights.level[branch][level] = {from.norm.scale,
                                      from.norm.bias,
                                      up.halves(),
                                      down.halves(),
                                      static_cast<int>(up.padded_out()),
                                      static_cast<int>(down.padded_out())};
    }
  }
  return weights;
}

}  // namespace

bool CudaBackend::SketchIsFused(const SketchNetwork& net) const {
  const DataType type = FormatOf(net);
  if (type != DataType::kBf16 && type != DataType::kF16) return false;
  return WithSizes(net.input, net.size, [&]<int D, int R>() {
    return SketchMany<D, R>::Shared(false) <= device_->shared_limit();
  });
}

bool CudaBackend::SketchTakesStep(const SketchNetwork& net, int64_t rows) const {
  return SketchIsFused(net) && WithSizes(net.input, net.size, [&]<int D, int R>() {
           return TakesFew<D, R>(device_.get(), rows, StepRows<D, R>::kShared);
         });
}

void CudaBackend::RunSketchStep(const SketchNetwork& net, const SketchStep& step) {
  const NetworkWeights weights = WeightsOf(net);
  const bool bf16 = FormatOf(net) == DataType::kBf16;
  WithSizes(net.input, net.size, [&]<int D, int R>() {
    if constexpr (SketchFew<D, R>::kShared + StepRows<D, R>::kShared <= kLargestShared) {
      const StepRows<D, R> rows{step, step.heads.count(),
                                Divisor(step.heads.heads + step.heads.kv_heads)};
      bf16 ? LaunchFew<D, R, true>(device_.get(), weights, rows)
           : LaunchFew<D, R, false>(device_.get(), weights, rows);
    }
    return true;
  });
}

void CudaBackend::RunFusedSketch(const SketchNetwork& net, const float* x, int64_t rows, float* out,
                                 uint16_t* bf16_out) {
  const NetworkWeights weights = WeightsOf(net);
  const bool bf16 = FormatOf(net) == DataType::kBf16;
  const bool launched = WithSizes(net.input, net.size, [&]<int D, int R>() {
    return bf16 ? LaunchFor<D, R, true>(device_.get(), weights, x, rows, {out, bf16_out})
                : LaunchFor<D, R, false>(device_.get(), weights, x, rows, {out, bf16_out});
  });
  PS_CHECK(launched) << net.input << " " << net.size;
}

}  // namespace polysketch::cuda
