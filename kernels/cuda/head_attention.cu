// Attention of kinds whose queries and keys are the heads of qkv. In a step of one token of each
// sequence one kernel norms and rotates heads, and stores keys and values in the states: what rope.cu
// and StoreTokens (attention_state.cuh) do, with the same bits.
#include <type_traits>

#include "kernels/cuda/attention_decay.cuh"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/rotated_heads.cuh"

namespace polysketch::cuda {
namespace {

constexpr int kThreads = 128;

struct HeadStep {
  HeadRows heads;  // of the batch; heads.rows tokens
  HeadNorms norms;
  bool aligned;  // heads and norms, to 16 bytes
  StoredStep stored;
  float* q;                // [tokens, heads, head_dim]
  const float* log_decay;  // [tokens, kv_heads]; null without a decay gate
};

// Stores elements i to i + 3 of a row, rounded to T.
template <typename T>
__device__ __forceinline__ void StoreQuadRounded(const Quad& quad, int i, int d, bool aligned,
                                                 T* row) {
  if constexpr (std::is_same_v<T, Bf16>) {
    if (aligned && i < d) return StoreHalves<true>(quad, 4, row + i);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (i + c < d) Round(quad.v[c], row + i + c);
    }
  } else {
    StoreQuad(quad, i, d, aligned, row);
  }
}

// A row is a head of q, k or v of a token, with kLanes lanes of kQuads quads each. T: of states.
template <typename T, int kLanes, int kQuads>
__global__ void __launch_bounds__(kThreads) HeadStepKernel(const HeadStep p) {
  AfterEarlierKernels();
  if (blockIdx.x == 0) ClearCounters(p.stored.counters, p.stored.counter_count);
  const int d = p.heads.head_dim, half = d / 2;
  const int per_token = p.heads.heads + 2 * p.heads.kv_heads;
  const int count = static_cast<int>(p.heads.rows) * per_token;
  const int index =
      static_cast<int>(blockIdx.x) * (kThreads / kLanes) + static_cast<int>(threadIdx.x) / kLanes;
  const int at = index < count ? index : count - 1, head = at % per_token;
  const int key = head - p.heads.heads, value = key - p.heads.kv_heads;
  const StoreJob& job = p.stored.jobs[at / per_token];
  const int64_t m = job.row;
  const float* from = p.heads.qkv + (m * per_token + head) * d;
  const int first = 4 * static_cast<int>(threadIdx.x % kLanes);
  Quad values[kQuads];
#pragma unroll
  for (int n = 0; n < kQuads; ++n) values[n] = LoadQuad(from, first + 4 * kLanes * n, d, p.aligned);
  if (p.norms.q.scale != nullptr) {  // of values too, which are read again
    NormQuads<kLanes>(d, key >= 0 ? p.norms.k : p.norms.q, p.aligned, values);
  }
  if (index >= count) return;

  const auto in_state = [&](const HeadArray& array, int kv_head) {
    return Array<T>(array, job.table, job.place, p.stored.layer, kv_head) +
           static_cast<int64_t>(job.first) * d;
  };
  const auto store = [&](auto* to) {
#pragma unroll
    for (int n = 0; n < kQuads; ++n) {
      const int i = first + 4 * kLanes * n;
      if (value >= 0 || p.heads.cos_sin == nullptr) {
        const Quad quad = value >= 0 ? LoadQuad(from, i, d, p.aligned) : values[n];
        StoreQuadRounded(quad, i, d, p.aligned, to);
        continue;
      }
      const float* cosines = p.heads.cos_sin + m * d;
#pragma unroll
      for (int c = 0; c < 4; c += 2) {
        if (i + c >= d) continue;
        const int pair = (i + c) / 2;
        const float even = values[n].v[c], odd = values[n].v[c + 1];
        Round(RotatedFirst(even, odd, cosines[pair], cosines[half + pair]), to + pair);
        Round(RotatedSecond(even, odd, cosines[pair], cosines[half + pair]), to + half + pair);
      }
    }
  };
  if (key < 0) return store(p.q + (m * p.heads.heads + head) * d);
  if (value >= 0) return store(in_state(job.to.values, value));
  store(in_state(job.to.near_keys, key));
  if (first == 0 && p.log_decay != nullptr) {
    StoreDecaySum(job, p.stored.layer, key, p.log_decay[m * p.heads.kv_heads + key]);
  }
}

template <typename T>
void Launch(Device* device, const HeadStep& step) {
  const int d = step.heads.head_dim;
  const auto launch = [&](auto* kernel, int lanes) {
    const int64_t rows = step.heads.rows * (step.heads.heads + 2 * step.heads.kv_heads);
    device->LaunchDependent(kernel, dim3(CeilDiv(rows, kThreads / lanes)), kThreads, 0, step);
  };
  if (d <= kNarrowNorm) {
    launch(HeadStepKernel<T, 16, 1>, 16);
  } else if (d <= kHeadNorm) {
    launch(HeadStepKernel<T, kWarpSize, 1>, kWarpSize);
  } else {
    launch(HeadStepKernel<T, kWarpSize, kRowQuads>, kWarpSize);
  }
}

}  // namespace

void CudaBackend::HeadAttention(const AttentionSpec& spec, int layer,
                                std::span<const Segment> segments, const HeadInput& input,
                                const Matrix& matrix, const float* bias, float* x) {
  const CudaMatrix& w = Cast(matrix);
  const int64_t rows = std::ssize(input.positions);
  const bool steps = spec.head_dim <= kRegisterNorm && spec.near_dim() == spec.head_dim &&
                     (input.norms.q.scale == nullptr || input.norms.before_rotation) &&
                     !spec.cache_scales() &&  // StoreTokens stores those
                     OneTokenEach(segments);
  const NormWeights &q_norm = input.norms.q, &k_norm = input.norms.k;
  HeadStep step{{input.qkv, UpdateAngles(input.positions, spec.shape(), input.thetas), rows,
                 spec.heads, spec.key_heads(), spec.head_dim},
                input.norms,
                AlignedQuads(spec.head_dim, {input.qkv, input.qk, q_norm.scale, q_norm.bias,
                                             k_norm.scale, k_norm.bias}),
                {},
                input.qk,
                spec.decay_gate ? input.log_decay : nullptr};
  const auto run = [&] {
    spec.state_format == StateFormat::kF32 ? Launch<float>(device_.get(), step)
                                           : Launch<Bf16>(device_.get(), step);
  };
  const auto store = [&](const StoredStep& stored) {
    step.heads.rows = stored.tokens;
    step.stored = stored;
    run();
  };
  if (steps && !segments.empty()) {
    AttentionInput of_step;
    of_step.near_q = input.qk;
    of_step.far_q = spec.kv_cache() ? nullptr : input.qk;
    of_step.coefficients = input.coefficients;
    return AttentionProduct(spec, layer, segments, of_step, Bf16Rows(), store, rows, w, bias,
                            input.attended, x);
  }
  if (steps) run();  // a rehearsal
  AttentionProduct(spec, layer, segments, RotateHeads(spec, input), Bf16Rows(), nullptr, rows, w,
                   bias, input.attended, x);
}

}  // namespace polysketch::cuda
