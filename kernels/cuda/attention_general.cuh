// Attention for every shape, one thread for each element: float32 states (exact), and narrower
// ones of shapes that the tensor core kernels (attention_parts.cuh) do not support.
#pragma once

#include "kernels/cuda/attention_decay.cuh"
#include "kernels/cuda/attention_format.cuh"
#include "kernels/cuda/attention_shape.cuh"

namespace polysketch::cuda {

constexpr int kGeneralThreads = 128;
constexpr int kGeneralKeys = 256;  // keys whose weights are in shared memory at a time

// The indices i and j of packed feature f, x_i x_j. Off-diagonal tiles of a query count twice.
__device__ __forceinline__ void PairOf(const AttentionShape& shape, int f, int* i, int* j) {
  int I, J;
  TilesOf(f / 64, shape.tiles, &I, &J);
  *i = I * 8 + f % 64 / 8;
  *j = J * 8 + f % 8;
}

template <typename T>
__device__ float KeyFeature(const AttentionShape& shape, const T* key, int f, int i, int j) {
  return shape.tiles == 0 ? Widen(key[f]) : Widen(key[i]) * Widen(key[j]);
}

__device__ __forceinline__ float QueryFeature(const AttentionShape& shape, const float* q, int f) {
  if (shape.tiles == 0) return q[f];
  int i, j;
  PairOf(shape, f, &i, &j);
  return (i / 8 == j / 8 ? 1.0f : 2.0f) * q[i] * q[j];
}

// blockIdx: job, kv head, slice of the elements.
template <typename Format, bool GATED>
__global__ void FoldGeneral(AttentionShape shape, const FoldJob* jobs, float* partials,
                            [[maybe_unused]] float* decays) {
  const FoldJob& job = jobs[blockIdx.x];
  const int head = blockIdx.y;
  const auto* keys = At<typename Format::Element>(job.from.far_keys, shape.layer, head);
  const CachedRows<Format> values(shape, At<uint8_t>(job.from.values, shape.layer, head), shape.d);
  const float* decay_sums = GATED ? At<float>(job.from.decay_sums, shape.layer, head) : nullptr;
  if constexpr (GATED) StoreBlockDecay(shape, job, head, decay_sums, decays);
  const int64_t width = shape.d + 1;
  float* out = partials + (job.partial * shape.kv_heads + head) * shape.features * width;
  const int64_t elements = shape.features * width;
  for (int64_t e = static_cast<int64_t>(blockIdx.z) * blockDim.x + threadIdx.x; e < elements;
       e += static_cast<int64_t>(gridDim.z) * blockDim.x) {
    const bool is_weight = e >= static_cast<int64_t>(shape.features) * shape.d;
    const int f = static_cast<int>(is_weight ? e - shape.features * shape.d : e / shape.d);
    const int c = static_cast<int>(e % shape.d);
    int i = 0, j = 0;
    if (shape.tiles > 0) PairOf(shape, f, &i, &j);
    float sum = 0;
    for (int s = 0; s < shape.block; ++s) {
      float phi = KeyFeature(shape, keys + s * shape.far_dim, f, i, j);
      if constexpr (GATED) phi *= expf(decay_sums[shape.block - 1] - decay_sums[s]);
      sum = is_weight ? sum + phi : fmaf(phi, values.At(s, c), sum);
    }
    out[e] = sum;
  }
}

template <typename Format>
__device__ __forceinline__ float NearDot(const float* q, const CachedRows<Format>& keys,
                                         int64_t row, int dim) {
  float dot = 0;
  for (int i = 0; i < dim; ++i) dot = fmaf(q[i], keys.At(row, i), dot);
  return dot;
}

// Shared memory of AttendGeneral, in floats.
__host__ __device__ inline int64_t GeneralShared(int d, int far_dim, int near_dim) {
  return kWarpSize + kGeneralKeys + d + far_dim + near_dim;
}

struct RunningSum {
  float top = 0;  // softmax: the largest score so far
  float denominator = 0;
};

// Adds keys [first, last) of a block to sums [d]. begun: something was added before. decay_sums: G
// of the block's tokens; row_sum: of the query. coefficients: CoefficientsOf.
template <bool GATED, typename Format>
__device__ void AddKeys(const AttentionShape& shape, const CachedRows<Format>& keys,
                        const CachedRows<Format>& values, const float* decay_sums, float row_sum,
                        int first, int last, const float* q, const float* coefficients,
                        float* scratch, float* weights, float* sums, RunningSum* running,
                        bool begun) {
  const int count = last - first;
  const bool softmax = shape.near_power == 0;
  float top = -INFINITY;
  for (int s = threadIdx.x; s < count; s += kGeneralThreads) {
    const float dot = NearDot(q, keys, first + s, shape.near_dim);
    weights[s] = softmax                   ? dot * shape.scale
                 : coefficients != nullptr ? PolynomialSquare(shape, coefficients, dot)
                                           : Power(dot, shape.near_power);
    if constexpr (GATED) weights[s] *= expf(row_sum - decay_sums[first + s]);
    top = fmaxf(top, weights[s]);
  }
  float rescale = 1;
  if (softmax) {
    top = BlockMax(top, kGeneralThreads, scratch);
    const float joint = begun ? fmaxf(top, running->top) : top;
    rescale = begun ? expf(running->top - joint) : 0.0f;
    running->top = joint;
  }
  float sum = 0;
  for (int s = threadIdx.x; s < count; s += kGeneralThreads) {
    if (softmax) weights[s] = expf(weights[s] - running->top);
    sum += weights[s];
  }
  const float total = BlockSum(sum, kGeneralThreads, scratch);  // a barrier: all weights are stored
  running->denominator = fmaf(running->denominator, rescale, total);
  for (int c = threadIdx.x; c < shape.d; c += kGeneralThreads) {
    float value = 0;
    for (int s = 0; s < count; ++s) {
      value = fmaf(weights[s], values.At(first + s, c), value);
    }
    sums[c] = fmaf(sums[c], rescale, value);
  }
  __syncthreads();  // all weights are read
}

// blockIdx: job, head, row of the job.
template <typename Format, bool GATED>
__global__ void __launch_bounds__(kGeneralThreads)
    AttendGeneral(AttentionShape shape, const AttendJob* jobs) {
  const AttendJob& job = jobs[blockIdx.x];
  const int head = blockIdx.y, kv = KvHead(shape, head), row = blockIdx.z;
  if (row >= job.count) return;
  auto* scratch = SharedMemory<float>();
  float* weights = scratch + kWarpSize;
  float* sums = weights + kGeneralKeys;
  float* far_q = sums + shape.d;
  float* near_q = far_q + shape.far_dim;
  const int64_t token = static_cast<int64_t>(job.row + row) * shape.heads + head;
  for (int i = threadIdx.x; i < shape.far_dim; i += kGeneralThreads) {
    far_q[i] = shape.far_q[token * shape.far_dim + i];
  }
  for (int i = threadIdx.x; i < shape.near_dim; i += kGeneralThreads) {
    near_q[i] = shape.near_q[token * shape.near_dim + i];
  }
  for (int c = threadIdx.x; c < shape.d; c += kGeneralThreads) sums[c] = 0;
  __syncthreads();

  const float* decay_sums = GATED ? At<float>(job.keys.decay_sums, shape.layer, kv) : nullptr;
  const float row_sum = GATED ? decay_sums[job.block_offset + row] : 0.0f;
  const float kept = expf(row_sum);  // of the far part
  RunningSum running;
  if (job.past != 0) {
    const auto* S = At<uint8_t>(job.sums, shape.layer, kv);
    const float* z = At<float>(job.weights, shape.layer, kv);
    float dot = 0;
    for (int f = threadIdx.x; f < shape.features; f += kGeneralThreads) {
      dot = fmaf(QueryFeature(shape, far_q, f), z[f], dot);
    }
    running.denominator = BlockSum(dot, kGeneralThreads, scratch);
    if constexpr (GATED) running.denominator *= kept;
    float factor = 1;
    if (shape.near_power == 0) {
      const FarScale scale(shape, PositionOf(shape, job, row), running.denominator);
      factor = scale.factor;
      running.top = scale.top;
      running.denominator *= factor;
    }
    for (int c = threadIdx.x; c < shape.d; c += kGeneralThreads) {
      float sum = 0;
      for (int f = 0; f < shape.features; ++f) {
        sum = fmaf(QueryFeature(shape, far_q, f), Format::Read(S, {shape.features, shape.d, f, c}),
                   sum);
      }
      sums[c] = (GATED ? sum * kept : sum) * factor;
    }
  }
  const float* coefficients = CoefficientsOf(shape, head);
  bool begun = running.denominator > 0;
  // Keys of the sequence from `begin` to `end`, block by block.
  const auto add = [&](int begin, int end) {
    for (int block = begin / shape.block; block * shape.block < end; ++block) {
      const auto rows = [&](const HeadArray& array, int width) {
        return CachedRows<Format>(shape, Array<uint8_t, true>(array, job, block, shape.layer, kv),
                                  width);
      };
      const auto keys = rows(job.keys.near_keys, shape.near_dim);
      const auto values = rows(job.keys.values, shape.d);
      const int start = block * shape.block, count = min(shape.block, end - start);
      for (int first = begin > start ? begin - start : 0; first < count; first += kGeneralKeys) {
        const int last = first + kGeneralKeys < count ? first + kGeneralKeys : count;
        AddKeys<GATED>(shape, keys, values, decay_sums, row_sum, first, last, near_q, coefficients,
                       scratch, weights, sums, &running, begun);
        begun = true;
      }
    }
  };
  const int first_row = job.block * shape.block + job.block_offset;
  int first = 0;
  if (job.reach >= 0) {
    first = first_row - min(first_row, ReachOf(shape, job, row));
    add(0, min(shape.sinks, first));
  }
  add(first, first_row + row + 1);
  const float denominator = shape.stabilizer + running.denominator;
  for (int c = threadIdx.x; c < shape.d; c += kGeneralThreads) {
    StoreOutput(shape, token * shape.d + c, sums[c] / denominator);
  }
}

}  // namespace polysketch::cuda
