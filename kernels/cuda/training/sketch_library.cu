// The C interface of the learned sketch: checks the arguments, then launches the kernels on the
// caller's stream.
#include "kernels/cuda/training/polysketch_sketch.h"

#include <algorithm>
#include <limits>

#include "base/status.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/training/refusal.h"
#include "kernels/cuda/training/sketch_gradients.cuh"
#include "kernels/cuda/training/sketch_rows.cuh"

namespace polysketch::cuda {
namespace {

using Network = polysketch_sketch_network;
using Shape = polysketch_sketch_shape;

// Thread blocks of a launch at most: the multiprocessors of an H100. Not the device's own number: the
// order of sums of the weights' gradients depends on it.
constexpr int64_t kBlocks = 132;

int64_t Align(int64_t bytes) { return (bytes + 255) / 256 * 256; }
int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The launches of a shape.
template <int D, int R>
class SketchCalls {
 public:
  using First = LevelGradients<D, R>;
  using Second = LevelGradients<R, R>;
  // Bytes of shared memory of a thread block.
  static constexpr int64_t kForwardShared = SketchMany<D, R>::Shared(true);
  static constexpr int64_t kShared = std::max({kForwardShared, First::kShared, Second::kShared});

  SketchCalls(int64_t rows, cudaStream_t stream) : rows_(rows), stream_(stream) {}

  int64_t kept_bytes() const { return 4 * rows_ * R * sizeof(Bf16); }
  int64_t workspace_bytes() const { return OfLevel(2, 2); }

  cudaError_t Forward(const Network& network, const Bf16* x, Bf16* out, Bf16* kept) {
    const int64_t blocks = std::min(CeilDivide(rows_, SketchMany<D, R>::kRows), kBlocks);
    return LaunchOn(stream_, SketchRows<D, R>, dim3(static_cast<unsigned>(blocks)),
                    SketchMany<D, R>::kThreads, kForwardShared, Parameters(network), x, rows_, out,
                    kept);
  }

  cudaError_t Backward(const Network& network, const Bf16* x, const Bf16* kept,
                       const Bf16* out_gradient, Bf16* x_gradient, const Network& gradients,
                       uint8_t* workspace) {
    auto* middle = reinterpret_cast<Bf16*>(workspace);  // gradient by the first level's results
    const SketchParameters parameters = Parameters(network);
    const auto results = [&](int level, int branch) {
      return kept + (2 * level + branch) * rows_ * R;
    };
    NetworkSums sums;
    for (int branch = 0; branch < 2; ++branch) {
      for (int level = 1; level >= 0; --level) {
        auto* partials = reinterpret_cast<float*>(workspace + OfLevel(level, branch));
        const auto& to = gradients.level[branch][level];
        sums.level[2 * level + branch] = {partials,
                                          level == 0 ? First::kFloats : Second::kFloats,
                                          level == 0 ? D : R,
                                          to.up,
                                          to.down,
                                          to.scale,
                                          to.bias};
        if (level == 1) {
          Launch<R>(parameters.level[branch][1],
                    {results(0, branch), out_gradient, results(1, branch), results(1, 1 - branch),
                     middle, false},
                    partials);
        } else {
          Launch<D>(parameters.level[branch][0],
                    {x, middle, nullptr, nullptr, x_gradient, branch == 1}, partials);
        }
      }
    }
    if (error_ != cudaSuccess) return error_;
    const dim3 grid(static_cast<unsigned>(CeilDivide(First::kFloats, kSumThreads)), 4);
    return LaunchOn(stream_, AddSketchGradients<R>, grid, kSumThreads, 0, sums,
                    static_cast<int>(parts()));
  }

 private:
  // Thread blocks of SketchLevelGradients.
  int64_t parts() const { return std::min(CeilDivide(rows_, First::kRows), kBlocks); }

  // Where the partial sums of a level are in the workspace: both branches of the first level, then of
  // the second. (2, 2): the end.
  int64_t OfLevel(int level, int branch) const {
    const int64_t first = Align(parts() * First::kFloats * sizeof(float));
    const int64_t second = Align(parts() * Second::kFloats * sizeof(float));
    return Align(rows_ * R * sizeof(Bf16)) + (level == 0 ? branch * first : 2 * first) +
           (level == 0 ? 0 : branch * second);
  }

  static SketchParameters Parameters(const Network& network) {
    SketchParameters parameters;
    for (int branch = 0; branch < 2; ++branch) {
      for (int level = 0; level < 2; ++level) {
        const polysketch_sketch_level& from = network.level[branch][level];
        parameters.level[branch][level] = {from.scale, from.bias, from.up, from.down};
      }
    }
    return parameters;
  }

  template <int IN>
  void Launch(const LevelParameters& level, const LevelRows& rows, float* partials) {
    using Sizes = LevelGradients<IN, R>;
    if (error_ != cudaSuccess) return;
    error_ = LaunchOn(stream_, SketchLevelGradients<IN, R>, dim3(static_cast<unsigned>(parts())),
                      Sizes::kThreads, Sizes::kShared, level, rows, rows_, partials);
  }

  const int64_t rows_;
  cudaStream_t const stream_;
  cudaError_t error_ = cudaSuccess;
};

// Bytes of shared memory that a block of the current device may have, or 0 without a device.
int64_t SharedLimit() {
  int device = 0, limit = 0;
  if (cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) ==
          cudaSuccess) {
    return limit;
  }
  cudaGetLastError();  // so that the next call does not report the error
  return 0;
}

Refusal CheckAddress(const char* name, const void* address) {
  if (address != nullptr && reinterpret_cast<uintptr_t>(address) % 4 == 0) return Refusal();
  return {POLYSKETCH_ATTENTION_INVALID,
          StrCat(name, ": expected an address that is a multiple of 4 and not null")};
}

Refusal CheckNetwork(const Network& network) {
  for (const auto& branch : network.level) {
    for (const polysketch_sketch_level& level : branch) {
      for (const float* array : {level.scale, level.bias, level.up, level.down}) {
        Refusal refusal = CheckAddress("a parameter of the sketch", array);
        if (!refusal.ok()) return refusal;
      }
    }
  }
  return Refusal();
}

// Calls work(SketchCalls) for a valid shape. Work returns a Refusal.
template <typename Work>
int WithCalls(const Shape* shape, void* stream, const Work& work) {
  if (shape == nullptr) return Report({POLYSKETCH_ATTENTION_INVALID, "shape is null"});
  if (shape->rows < 1 || shape->rows > std::numeric_limits<int32_t>::max()) {
    return Report(
        {POLYSKETCH_ATTENTION_INVALID, StrCat("expected 1 to ", std::numeric_limits<int32_t>::max(),
                                              " rows, found ", shape->rows)});
  }
  const auto run = [&]<int D, int R>() {
    const int64_t limit = SharedLimit(), needed = SketchCalls<D, R>::kShared;
    if (limit != 0 && needed > limit) {
      return Report({POLYSKETCH_ATTENTION_UNSUPPORTED,
                     StrCat("expected a device with ", needed,
                            " bytes of shared memory for a thread block (learned sketch, ", D,
                            " to ", R, "), found ", limit)});
    }
    return Report(work(SketchCalls<D, R>(shape->rows, static_cast<cudaStream_t>(stream))));
  };
  const int d = shape->input_dim, r = shape->sketch_dim;
  if (d == 32 && r == 16) return run.template operator()<32, 16>();
  if (d == 32 && r == 32) return run.template operator()<32, 32>();
  if (d == 64 && r == 16) return run.template operator()<64, 16>();
  if (d == 64 && r == 32) return run.template operator()<64, 32>();
  return Report(
      {POLYSKETCH_ATTENTION_UNSUPPORTED,
       StrCat("learned sketch: expected input_dim 32 or 64 and sketch_dim 16 or 32, found ", d,
              " and ", r)});
}

}  // namespace
}  // namespace polysketch::cuda

using polysketch::cuda::Bf16;
using polysketch::cuda::CheckAddress;
using polysketch::cuda::CheckNetwork;
using polysketch::cuda::CheckWorkspace;
using polysketch::cuda::Launched;
using polysketch::cuda::Refusal;
using polysketch::cuda::Report;

extern "C" {

__attribute__((visibility("default"))) int polysketch_sketch_sizes(
    const polysketch_sketch_shape* shape, size_t* kept, size_t* workspace) {
  return polysketch::cuda::WithCalls(shape, nullptr, [&](const auto& calls) {
    if (kept == nullptr || workspace == nullptr) {
      return Refusal{POLYSKETCH_ATTENTION_INVALID, "an argument is null"};
    }
    *kept = static_cast<size_t>(calls.kept_bytes());
    *workspace = static_cast<size_t>(calls.workspace_bytes());
    return Refusal();
  });
}

__attribute__((visibility("default"))) int polysketch_sketch_forward(
    const polysketch_sketch_shape* shape, const polysketch_sketch_network* network, const void* x,
    void* out, void* kept, void* stream) {
  return polysketch::cuda::WithCalls(shape, stream, [&](auto calls) {
    if (network == nullptr) return Refusal{POLYSKETCH_ATTENTION_INVALID, "network is null"};
    Refusal refusal = CheckNetwork(*network);
    if (refusal.ok()) refusal = CheckAddress("x", x);
    if (refusal.ok()) refusal = CheckAddress("out", out);
    if (refusal.ok() && kept != nullptr) refusal = CheckAddress("kept", kept);
    if (!refusal.ok()) return refusal;
    return Launched(calls.Forward(*network, static_cast<const Bf16*>(x), static_cast<Bf16*>(out),
                                  static_cast<Bf16*>(kept)));
  });
}

__attribute__((visibility("default"))) int polysketch_sketch_backward(
    const polysketch_sketch_shape* shape, const polysketch_sketch_network* network, const void* x,
    const void* kept, const void* out_gradient, void* x_gradient,
    const polysketch_sketch_network* gradients, void* workspace, size_t workspace_bytes,
    void* stream) {
  return polysketch::cuda::WithCalls(shape, stream, [&](auto calls) {
    if (network == nullptr || gradients == nullptr) {
      return Refusal{POLYSKETCH_ATTENTION_INVALID, "network or gradients are null"};
    }
    Refusal refusal = CheckNetwork(*network);
    if (refusal.ok()) refusal = CheckNetwork(*gradients);
    if (refusal.ok()) refusal = CheckAddress("x", x);
    if (refusal.ok()) refusal = CheckAddress("kept", kept);
    if (refusal.ok()) refusal = CheckAddress("out_gradient", out_gradient);
    if (refusal.ok()) refusal = CheckAddress("x_gradient", x_gradient);
    if (refusal.ok()) {
      refusal = CheckWorkspace(workspace, workspace_bytes, calls.workspace_bytes());
    }
    if (!refusal.ok()) return refusal;
    return Launched(
        calls.Backward(*network, static_cast<const Bf16*>(x), static_cast<const Bf16*>(kept),
                       static_cast<const Bf16*>(out_gradient), static_cast<Bf16*>(x_gradient),
                       *gradients, static_cast<uint8_t*>(workspace)));
  });
}

}  // extern "C"
