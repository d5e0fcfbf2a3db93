// The C interface: checks the arguments, then launches the kernels of one group of heads after the
// other on the caller's stream.
#include "kernels/cuda/training/polysketch_attention.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/status.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/training/decay.cuh"
#include "kernels/cuda/training/forward.cuh"
#include "kernels/cuda/training/gradients.cuh"
#include "kernels/cuda/training/group.cuh"
#include "kernels/cuda/training/plan.h"
#include "kernels/cuda/training/states.cuh"

namespace polysketch::cuda {
namespace {

constexpr int kRoundThreads = 256, kRoundPieces = 32;

TokenRows InputRows(const polysketch_attention_tensor& tensor) {
  return {static_cast<const Bf16*>(tensor.data), tensor.batch_stride, tensor.head_stride,
          tensor.token_stride, 0};
}

OutputRows RowsOf(const polysketch_attention_tensor& tensor) {
  return {tensor.data, tensor.batch_stride, tensor.head_stride, tensor.token_stride, tensor.type};
}

// Visits the tensors that the form of the shape has, with their names and widths.
template <typename Visit>
void ForArrays(const polysketch_attention_shape& shape, const polysketch_attention_arrays& arrays,
               const Visit& visit) {
  if (shape.near_dim > 0) {
    visit("near_q", arrays.near_q, shape.near_dim);
    visit("near_k", arrays.near_k, shape.near_dim);
  }
  if (shape.sketch_dim > 0) {
    visit("far_q", arrays.far_q, shape.sketch_dim);
    visit("far_k", arrays.far_k, shape.sketch_dim);
  }
  visit("v", arrays.v, shape.head_dim);
}

Refusal CheckArrays(const polysketch_attention_shape& shape,
                    const polysketch_attention_arrays& arrays, bool input) {
  Refusal refusal;
  ForArrays(shape, arrays,
            [&](const char* name, const polysketch_attention_tensor& tensor, int width) {
              if (refusal.ok()) refusal = CheckTensor(shape, name, tensor, width, input);
            });
  const auto address = reinterpret_cast<uintptr_t>(arrays.log_decay);
  if (refusal.ok() && shape.decay_gate == 1 && (address == 0 || address % sizeof(float) != 0)) {
    return {POLYSKETCH_ATTENTION_INVALID,
            "log_decay: expected an address that is a multiple of 4 and not null"};
  }
  return refusal;
}

// Bytes of shared memory of the largest kernel of a pass.
template <int D>
int64_t SharedOf(const TrainingPlan& plan, bool backward) {
  const int64_t tiles = backward ? GradientMemory<D>::Bytes(plan.far_dim, plan.near_dim)
                                 : TilesShared<D>(plan.far_dim, plan.near_dim);
  const int64_t walk =
      plan.gated ? WalkStage<D, true>(plan.far_dim) : WalkStage<D, false>(plan.far_dim);
  return plan.states ? std::max(tiles, 2 * walk) : tiles;
}

// An attribute of the current device, or 0 without one.
int Attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  if (cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess) {
    return value;
  }
  cudaGetLastError();  // so that the next call does not report the error
  return 0;
}

// Refuses a pass that needs more shared memory than the current device has. Without a device no
// pass is refused: its launches fail.
Refusal CheckShared(const polysketch_attention_shape& shape, const TrainingPlan& plan,
                    bool backward) {
  const int limit = Attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (limit == 0) return Refusal();
  const int64_t needed = shape.head_dim == 32   ? SharedOf<32>(plan, backward)
                         : shape.head_dim == 64 ? SharedOf<64>(plan, backward)
                                                : SharedOf<128>(plan, backward);
  if (needed <= limit) return Refusal();
  return {
      POLYSKETCH_ATTENTION_UNSUPPORTED,
      StrCat("expected a device with ", needed, " bytes of shared memory for a thread block (",
             backward ? "backward" : "forward", " pass, head_dim ", shape.head_dim, ", near_dim ",
             shape.near_dim, ", sketch_dim ", shape.sketch_dim, "), found ", limit)};
}

// The launches of a call, for head size D. GATED: with a decay gate.
template <int D, bool GATED>
class Calls {
 public:
  Calls(const polysketch_attention_shape& shape, const polysketch_attention_arrays& inputs,
        const ChunkStates& chunk, const TrainingPlan& plan, void* workspace, void* stream)
      : plan_(plan),
        inputs_(inputs),
        chunk_(chunk),
        workspace_(static_cast<uint8_t*>(workspace)),
        stream_(static_cast<cudaStream_t>(stream)),
        by_groups_(plan.by_groups && GroupMemory::Bytes(plan.far_dim) <=
                                         Attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)),
        early_(Attribute(cudaDevAttrComputeCapabilityMajor) >= 9) {
    AttentionShape& sizes = shape_.attention;
    sizes.heads = static_cast<int>(shape.heads);
    sizes.d = D;
    sizes.far_dim = plan.far_dim;
    sizes.near_dim = plan.near_dim;
    sizes.block = static_cast<int>(plan.block);
    sizes.features = plan.features;
    sizes.tiles = plan.linear ? 0 : plan.far_dim / 8;
    sizes.near_power = plan.near_power;
    sizes.stabilizer = shape.stabilizer;
    shape_.tokens = shape.tokens;
    shape_.blocks = plan.blocks;
    shape_.first_read = chunk.before == nullptr ? 1 : 0;
  }

  cudaError_t Forward(const OutputRows& out, float* denominators) {
    ForGroups([&] {
      if constexpr (D == 64) {
        if (by_groups_) return ForwardByGroups(out, denominators);
      }
      WalkOver(shape_.far_k, shape_.v, nullptr, false);
      Launch(ForwardTiles<D, GATED>, TileGrid(TileRows<D>()), kTileThreads,
             TilesShared<D>(plan_.far_dim, plan_.near_dim), SnapshotsOfGroup(), out, denominators);
    });
    return error_;
  }

  cudaError_t Backward(const OutputRows& out, const float* denominators,
                       const polysketch_attention_tensor& out_gradient,
                       const polysketch_attention_arrays& gradients) {
    ForGroups([&] {
      const TokenRows g = Rows(out_gradient, D, plan_.g);
      auto* a = reinterpret_cast<Bf16*>(workspace_ + plan_.a);
      auto* e = reinterpret_cast<float*>(workspace_ + plan_.e);
      auto* decay_terms = reinterpret_cast<float*>(workspace_ + plan_.decay_terms);
      const TokenRows a_rows = OfGroup(a, D);
      const auto tokens =
          static_cast<unsigned>((shape_.tokens + ScaleTokens<D>() - 1) / ScaleTokens<D>());
      Launch(ScaleCotangents<D>, dim3(tokens, group_), kScaleThreads, 0, g, out, denominators, a,
             e);
      cuda::Backward backward{
          a_rows, e, SnapshotsOfGroup(), {}, {}, {}, plan_.mixed || !plan_.sketched, decay_terms};
      const bool usual = plan_.near_dim == D && plan_.near_power == 4;
      const bool wide = plan_.near_dim > NearWidth<D>();
      const size_t shared = GradientMemory<D>::Bytes(plan_.far_dim, plan_.near_dim);
      const auto run = [&](auto kernel, const polysketch_attention_tensor& near,
                           const polysketch_attention_tensor& far) {
        if (backward.own_near) backward.near = RowsOf(near);
        if (plan_.sketched) backward.far = RowsOf(far);
        Launch(kernel, TileGrid(GradientRows<D>()), kTileThreads, shared, backward);
      };
      WalkOver(shape_.far_k, shape_.v, nullptr, false);
      run(usual  ? QueryGradients<D, 4, GATED>
          : wide ? QueryGradients<D, 0, GATED, WideNear<D>()>
                 : QueryGradients<D, 0, GATED>,
          gradients.near_q, gradients.far_q);
      WalkOver(shape_.far_q, a_rows, e, true);
      backward.v = RowsOf(gradients.v);
      run(usual  ? KeyGradients<D, 4, GATED>
          : wide ? KeyGradients<D, 0, GATED, WideNear<D>()>
                 : KeyGradients<D, 0, GATED>,
          gradients.near_k, gradients.far_k);
      if constexpr (GATED) {
        Launch(LogDecayGradients, dim3(1, group_), kDecayThreads,
               kDecayThreads / kWarpSize * sizeof(float), decay_terms, gradients.log_decay);
      }
    });
    return error_;
  }

 private:
  void ForwardByGroups(const OutputRows& out, float* denominators) {
    const bool walks = Folded() > 0 || chunk_.before != nullptr;
    const WalkProgress progress = WalkStatesByGroups<true>();
    const dim3 tiles = TileGrid(kGroupRows);
    WithGroupShape(plan_.near_dim, plan_.near_power, [&]<int NEAR, int POWER>() {
      LaunchIn(/*early=*/early_ && walks, ForwardGroups<NEAR, POWER, GATED>, dim3(tiles.y, tiles.x),
               kGroupThreads, GroupMemory::Bytes(plan_.far_dim), SnapshotsOfGroup(), out,
               denominators, progress);
    });
  }

  // Stores the states that queries read. TILES: for ForwardGroups.
  template <bool TILES>
  WalkProgress WalkStatesByGroups() {
    const WalkProgress progress{reinterpret_cast<int32_t*>(workspace_ + plan_.counters),
                                plan_.features, static_cast<int>(group_)};
    if (Folded() == 0 && chunk_.before == nullptr) return progress;
    if (error_ == cudaSuccess) {
      const size_t counters = static_cast<size_t>(group_) * progress.of_head() * sizeof(int32_t);
      error_ = cudaMemsetAsync(progress.counters, 0, counters, stream_);
    }
    const int groups =
        WalkMemory::Groups(GATED, Attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
    Launch(of_chunk() ? WalkForward<true, GATED, TILES> : WalkForward<false, GATED, TILES>,
           dim3(static_cast<unsigned>(plan_.features / kWalkFeatures), group_), groups * kWarpgroup,
           WalkMemory::Bytes(GATED, groups), SnapshotsOfGroup(), chunk_, progress);
    return progress;
  }

  template <typename Work>
  void ForGroups(const Work& work) {
    for (shape_.first = 0; shape_.first < plan_.heads; shape_.first += plan_.group) {
      group_ = static_cast<unsigned>(std::min(plan_.group, plan_.heads - shape_.first));
      FindInputs();
      if constexpr (GATED) SumDecays();
      work();
    }
  }

  void FindInputs() {
    if (plan_.sketched) {
      shape_.far_q = Rows(inputs_.far_q, plan_.far_dim, plan_.far_q);
      shape_.far_k = Rows(inputs_.far_k, plan_.far_dim, plan_.far_k);
    }
    const bool own_near = plan_.mixed || !plan_.sketched;
    shape_.near_q = own_near ? Rows(inputs_.near_q, plan_.near_dim, plan_.near_q) : shape_.far_q;
    shape_.near_k = own_near ? Rows(inputs_.near_k, plan_.near_dim, plan_.near_k) : shape_.far_k;
    shape_.v = Rows(inputs_.v, D, plan_.v);
  }

  // Stores G of the group's tokens.
  void SumDecays() {
    auto* sums = reinterpret_cast<float*>(workspace_ + plan_.decay_sums);
    shape_.decay_sums = sums;
    Launch(SumLogDecays, dim3(static_cast<unsigned>(plan_.blocks), group_), kDecayThreads,
           kDecayThreads * sizeof(float), inputs_.log_decay, sums);
  }

  // The group's rows of a tensor in bf16: those of the tensor, or rounded rows at `offset` of the
  // workspace.
  TokenRows Rows(const polysketch_attention_tensor& tensor, int width, int64_t offset) {
    if (offset < 0) return InputRows(tensor);
    auto* rounded = reinterpret_cast<Bf16*>(workspace_ + offset);
    const int64_t pieces = (shape_.tokens * width / 2 + kRoundThreads - 1) / kRoundThreads;
    Launch(RoundInputs, dim3(static_cast<unsigned>(std::min<int64_t>(pieces, 256)), group_),
           kRoundThreads, 0, InputRows(tensor), width, rounded);
    return OfGroup(rounded, width);
  }

  // The rows of an array [group][tokens][width].
  TokenRows OfGroup(const Bf16* data, int width) const {
    const int64_t head = shape_.tokens * width;
    return {data, shape_.attention.heads * head, head, width, shape_.first * head};
  }

  Snapshots SnapshotsOfGroup() const {
    return {workspace_, plan_.snapshot_bytes, plan_.snapshot_z};
  }

  // Blocks that the walk over earlier blocks folds: the last one for the final state alone.
  int64_t Folded() const {
    return plan_.sketched ? plan_.blocks - (chunk_.after == nullptr ? 1 : 0) : 0;
  }

  bool of_chunk() const { return chunk_.before != nullptr || chunk_.after != nullptr; }

  // Stores the state that the queries of the first block read.
  void RoundStateBefore() {
    if (chunk_.before == nullptr) return;
    Launch(RoundState<D>, dim3(kRoundPieces, group_), kRoundThreads, 0, SnapshotsOfGroup(), chunk_);
  }

  dim3 TileGrid(int64_t rows) const {
    return dim3(static_cast<unsigned>(plan_.blocks * ((plan_.block + rows - 1) / rows)), group_);
  }

  void WalkOver(const TokenRows& rows, const TokenRows& values, const float* weights,
                bool reverse) {
    if (by_groups_ && !reverse) {
      WalkStatesByGroups<false>();
      return;
    }
    if (!reverse) RoundStateBefore();
    if ((reverse ? plan_.blocks - 1 : Folded()) == 0) return;
    const int count = reverse ? plan_.ranges : plan_.state_ranges;
    Walk walk{rows,
              values,
              weights,
              reverse,
              true,
              count,
              reinterpret_cast<float*>(workspace_ + plan_.partials),
              SnapshotsOfGroup(),
              reverse ? ChunkStates() : chunk_};
    const auto features =
        static_cast<unsigned>((plan_.features + WalkFeatures<D>() - 1) / WalkFeatures<D>());
    const auto ranges = static_cast<unsigned>(count);
    const size_t shared = 2 * WalkStage<D, GATED>(plan_.far_dim);
    if (ranges > 1) {
      Launch(WalkStates<D, false, GATED>, dim3(features, group_, ranges - 1), kFoldThreads, shared,
             walk);
    }
    walk.sums_only = false;
    Launch(!reverse && of_chunk() ? WalkStates<D, true, GATED> : WalkStates<D, false, GATED>,
           dim3(features, group_, ranges), kFoldThreads, shared, walk);
  }

  template <typename... Parameters, typename... Arguments>
  void Launch(void (*kernel)(TrainingShape, Parameters...), dim3 grid, int threads, size_t shared,
              const Arguments&... arguments) {
    LaunchIn(/*early=*/false, kernel, grid, threads, shared, arguments...);
  }
  template <typename... Parameters, typename... Arguments>
  void LaunchIn(bool early, void (*kernel)(TrainingShape, Parameters...), dim3 grid, int threads,
                size_t shared, const Arguments&... arguments) {
    if (error_ != cudaSuccess) return;
    error_ = LaunchOn(stream_, early, kernel, grid, threads, shared, shape_,
                      static_cast<Parameters>(arguments)...);
  }

  const TrainingPlan& plan_;
  const polysketch_attention_arrays& inputs_;
  const ChunkStates chunk_;
  uint8_t* const workspace_;
  cudaStream_t const stream_;
  const bool by_groups_;  // whether the kernels of group.cuh run
  const bool early_;      // whether the device has programmatic dependent launch
  TrainingShape shape_;
  unsigned group_ = 0;
  cudaError_t error_ = cudaSuccess;
};

// Runs `work` with the Calls of the head size, and returns its status.
template <typename Work>
int WithCalls(const polysketch_attention_shape& shape, const polysketch_attention_arrays& inputs,
              const ChunkStates& chunk, const TrainingPlan& plan, void* workspace, void* stream,
              const Work& work) {
  const auto run = [&]<int D>() {
    return plan.gated ? work(Calls<D, true>(shape, inputs, chunk, plan, workspace, stream))
                      : work(Calls<D, false>(shape, inputs, chunk, plan, workspace, stream));
  };
  const cudaError_t error = shape.head_dim == 32   ? run.template operator()<32>()
                            : shape.head_dim == 64 ? run.template operator()<64>()
                                                   : run.template operator()<128>();
  return Report(Launched(error));
}

}  // namespace
}  // namespace polysketch::cuda

using polysketch::cuda::CheckArrays;
using polysketch::cuda::CheckShared;
using polysketch::cuda::CheckStates;
using polysketch::cuda::CheckTensor;
using polysketch::cuda::CheckWorkspace;
using polysketch::cuda::PlanTraining;
using polysketch::cuda::Refusal;
using polysketch::cuda::Report;
using polysketch::cuda::TrainingPlan;

extern "C" {

__attribute__((visibility("default"))) int polysketch_attention_version(void) {
  return POLYSKETCH_ATTENTION_VERSION;
}

__attribute__((visibility("default"))) int polysketch_attention_emulated(void) {
#if defined(__CUDACC__)
  return 0;
#else
  return 1;
#endif
}

__attribute__((visibility("default"))) int polysketch_attention_workspace(
    const polysketch_attention_shape* shape, size_t* forward, size_t* backward) {
  if (shape == nullptr) return Report({POLYSKETCH_ATTENTION_INVALID, "shape is null"});
  TrainingPlan plan;
  Refusal refusal = PlanTraining(*shape, &plan);
  if (refusal.ok() && forward != nullptr) refusal = CheckShared(*shape, plan, false);
  if (refusal.ok() && backward != nullptr) refusal = CheckShared(*shape, plan, true);
  if (!refusal.ok()) return Report(std::move(refusal));
  if (forward != nullptr) *forward = static_cast<size_t>(plan.forward_bytes);
  if (backward != nullptr) *backward = static_cast<size_t>(plan.backward_bytes);
  return POLYSKETCH_ATTENTION_OK;
}

__attribute__((visibility("default"))) int polysketch_attention_state(
    const polysketch_attention_shape* shape, size_t* floats) {
  if (shape == nullptr || floats == nullptr) {
    return Report({POLYSKETCH_ATTENTION_INVALID, "an argument is null"});
  }
  TrainingPlan plan;
  Refusal refusal = PlanTraining(*shape, &plan);
  if (!refusal.ok()) return Report(std::move(refusal));
  *floats = static_cast<size_t>(plan.state_floats);
  return POLYSKETCH_ATTENTION_OK;
}

__attribute__((visibility("default"))) int polysketch_attention_forward(
    const polysketch_attention_shape* shape, const polysketch_attention_arrays* inputs,
    const float* initial_state, const polysketch_attention_tensor* out, float* denominators,
    float* final_state, void* workspace, size_t workspace_bytes, void* stream) {
  if (shape == nullptr || inputs == nullptr || out == nullptr || denominators == nullptr) {
    return Report({POLYSKETCH_ATTENTION_INVALID, "an argument is null"});
  }
  TrainingPlan plan;
  Refusal refusal = PlanTraining(*shape, &plan);
  if (refusal.ok()) refusal = CheckArrays(*shape, *inputs, true);
  if (refusal.ok()) refusal = CheckStates(*shape, initial_state, final_state);
  if (refusal.ok()) refusal = CheckTensor(*shape, "out", *out, shape->head_dim, false);
  if (refusal.ok()) refusal = CheckWorkspace(workspace, workspace_bytes, plan.forward_bytes);
  if (refusal.ok()) refusal = CheckShared(*shape, plan, false);
  if (!refusal.ok()) return Report(std::move(refusal));
  return polysketch::cuda::WithCalls(
      *shape, *inputs, {initial_state, final_state}, plan, workspace, stream,
      [&](auto calls) { return calls.Forward(polysketch::cuda::RowsOf(*out), denominators); });
}

__attribute__((visibility("default"))) int polysketch_attention_backward(
    const polysketch_attention_shape* shape, const polysketch_attention_arrays* inputs,
    const float* initial_state, const polysketch_attention_tensor* out, const float* denominators,
    const polysketch_attention_tensor* out_gradient, const polysketch_attention_arrays* gradients,
    void* workspace, size_t workspace_bytes, void* stream) {
  if (shape == nullptr || inputs == nullptr || out == nullptr || denominators == nullptr ||
      out_gradient == nullptr || gradients == nullptr) {
    return Report({POLYSKETCH_ATTENTION_INVALID, "an argument is null"});
  }
  TrainingPlan plan;
  Refusal refusal = PlanTraining(*shape, &plan);
  if (refusal.ok()) refusal = CheckArrays(*shape, *inputs, true);
  if (refusal.ok()) refusal = CheckStates(*shape, initial_state, nullptr);
  if (refusal.ok()) refusal = CheckTensor(*shape, "out", *out, shape->head_dim, false);
  if (refusal.ok()) {
    refusal = CheckTensor(*shape, "out_gradient", *out_gradient, shape->head_dim, true);
  }
  if (refusal.ok()) refusal = CheckArrays(*shape, *gradients, false);
  if (refusal.ok()) refusal = CheckWorkspace(workspace, workspace_bytes, plan.backward_bytes);
  if (refusal.ok()) refusal = CheckShared(*shape, plan, true);
  if (!refusal.ok()) return Report(std::move(refusal));
  return polysketch::cuda::WithCalls(
      *shape, *inputs, {initial_state, nullptr}, plan, workspace, stream, [&](auto calls) {
        return calls.Backward(polysketch::cuda::RowsOf(*out), denominators, *out_gradient,
                              *gradients);
      });
}

}  // extern "C"
