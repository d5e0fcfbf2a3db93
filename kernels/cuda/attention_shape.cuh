// What all attention kernels share: the shapes, the addresses of a job's arrays, elements of 16 and
// 32 bits, and powers.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention_jobs.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/divisor.cuh"
#include "kernels/cuda/planted.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/state_planes.h"

namespace polysketch::cuda {

// A kernel argument.
struct AttentionShape {
  int heads = 0, d = 0, far_dim = 0, near_dim = 0, block = 0;
  int kv_heads = 0;  // of keys, values, gates and states
  Divisor group;     // heads of queries for each of them
  int features = 0;
  int tiles = 0;  // far_dim / 8 of packed symmetric features; 0: features are the far rows
  // weight = dot^near_power, or exp(dot * scale) if 0; with coefficients PolynomialSquare
  int near_power = 0;
  float scale = 1;
  float offset = 0;
  float stabilizer = 0;
  Divisor block_parts;  // parts of 64 keys of a block
  // Of a window: AttentionSpec::Visible, and FarFactor of its far part.
  int sinks = 0;
  bool sliding = true;
  int far_length = 0;
  int layer = 0;  // of its group
  // The packed batch (kernels/backend.h).
  const float* near_q = nullptr;
  const float* near_k = nullptr;
  const float* far_q = nullptr;
  const float* far_k = nullptr;
  Bf16Rows rows;  // in place of the four arrays above, if they are not null
  const float* v = nullptr;
  int64_t v_stride = 0;
  // The result: out_halves if it is not null, rounded to bf16 or float16.
  float* out = nullptr;
  uint16_t* out_halves = nullptr;
  bool out_bf16 = true;
  const float* log_decay = nullptr;     // read by the kernels with a decay gate
  const float* coefficients = nullptr;  // polynomial_square: [heads, near_power + 1]
};

// Of a head; null if the shape has none.
__device__ __forceinline__ const float* CoefficientsOf(const AttentionShape& shape, int head) {
  return shape.coefficients == nullptr ? nullptr
                                       : shape.coefficients + head * (shape.near_power + 1);
}

// P((dot + alpha) / beta)^2 by Horner's rule, P of degree near_power. coefficients: of the head.
__device__ __forceinline__ float PolynomialSquare(const AttentionShape& shape,
                                                  const float* coefficients, float dot) {
  const float x = (dot + shape.offset) * shape.scale;
  float value = coefficients[shape.near_power];
  for (int i = shape.near_power - 1; i >= 0; --i) value = fmaf(value, x, coefficients[i]);
  return value * value;
}

// The pieces of rows that a thread processes, every `threads`-th one, without a division for each.
class RowPieces {
 public:
  __device__ __forceinline__ RowPieces(int pieces, int thread, int threads)
      : row(thread / pieces),
        piece(thread % pieces),
        pieces_(pieces),
        row_step_(threads / pieces),
        piece_step_(threads % pieces) {}
  __device__ __forceinline__ void Next() {
    row += row_step_;
    piece += piece_step_;
    if (piece >= pieces_) {
      piece -= pieces_;
      ++row;
    }
  }
  int row, piece;

 private:
  const int pieces_, row_step_, piece_step_;
};

// Rounds four, or eight, neighbouring floats, aligned to 16 bytes.
__device__ __forceinline__ uint2 RoundFour(const float* from) {
  const float4 a = *reinterpret_cast<const float4*>(from);
  return {PackBf16(a.x, a.y), PackBf16(a.z, a.w)};
}
__device__ __forceinline__ uint4 RoundEight(const float* from) {
  const uint2 low = RoundFour(from), high = RoundFour(from + 4);
  return {low.x, low.y, high.x, high.y};
}

// Store elements `at`, and `at` + 1 of an even one, of the result.
__device__ __forceinline__ void StoreOutput(const AttentionShape& shape, int64_t at, float value) {
  if (shape.out_halves == nullptr) {
    shape.out[at] = value;
  } else {
    shape.out_halves[at] =
        static_cast<uint16_t>(shape.out_bf16 ? PackBf16(value, 0.0f) : PackF16(value, 0.0f));
  }
}
__device__ __forceinline__ void StoreOutputPair(const AttentionShape& shape, int64_t at, float low,
                                                float high) {
  if (shape.out_halves == nullptr) {
    *reinterpret_cast<float2*>(shape.out + at) = {low, high};
  } else {
    *reinterpret_cast<uint32_t*>(shape.out_halves + at) =
        shape.out_bf16 ? PackBf16(low, high) : PackF16(low, high);
  }
}

template <typename T>
__device__ __forceinline__ T* At(const HeadArray& array, int layer, int head) {
  return reinterpret_cast<T*>(array.base + array.layer_stride * layer + array.head_stride * head);
}

// An array in a block of a KV cache.
template <typename T>
__device__ __forceinline__ T* InBlock(const uint8_t* block, const HeadArray& array, int layer,
                                      int head) {
  return reinterpret_cast<T*>(reinterpret_cast<uint64_t>(block) + array.base +
                              array.layer_stride * layer + array.head_stride * head);
}

// An array of a job: in the block at a place of `table`, or, if that is null, at its own address.
template <typename T>
__device__ __forceinline__ T* Array(const HeadArray& array, uint8_t* const* table, int64_t place,
                                    int layer, int head) {
  return table != nullptr ? InBlock<T>(table[place], array, layer, head)
                          : At<T>(array, layer, head);
}

// Sets the counters of the attention kernels to zero, by a thread block.
__device__ __forceinline__ void ClearCounters(int32_t* counters, int count) {
  for (int i = threadIdx.x; i < count; i += static_cast<int>(blockDim.x)) counters[i] = 0;
}

// The place of a block in the table of a job. WINDOW, here and below: of a model with a window.
template <bool WINDOW>
__device__ __forceinline__ int PlaceOf(const AttendJob& job, int block) {
  return !WINDOW || block < job.sink_blocks ? block : block - job.dropped;
}
// An array of a job in block `block`.
template <typename T, bool WINDOW>
__device__ __forceinline__ T* Array(const HeadArray& array, const AttendJob& job, int block,
                                    int layer, int head) {
  return Array<T>(array, job.table, PlaceOf<WINDOW>(job, block), layer, head);
}

// The kv head of a query head.
__device__ __forceinline__ int KvHead(const AttentionShape& shape, int head) {
  return PS_PLANTED(KV_HEAD) ? head % shape.kv_heads : shape.group.Quotient(head);
}

// The tokens from the first one after the sinks that row `row` of a job attends to up to the job's
// first row; only with a window.
__device__ __forceinline__ int ReachOf(const AttentionShape& shape, const AttendJob& job, int row) {
  return job.reach + (PS_PLANTED(WINDOW_MASK) ? 1 : 0) - (shape.sliding ? row : 0);
}

// How the far part of a window joins the softmax of its near part: sums of values and of weights are
// multiplied by `factor` and belong to the top `top`. factor contains AttentionSpec::FarFactor and a power
// of two that brings the weight near 1, so that neither part underflows beside the other.
struct FarScale {
  // Without a weight only roundings are left of the sums, which are dropped.
  float factor = 0, top = -INFINITY;

  // weight: of all tokens of the far part. position: of the query.
  __device__ __forceinline__ FarScale(const AttentionShape& shape, int position, float weight) {
    const float length = position > shape.far_length
                             ? static_cast<float>(shape.far_length) / static_cast<float>(position)
                             : 1.0f;
    const float scaled = weight * length;
    if (!(scaled > 0)) return;
    const int exponent = min(static_cast<int>(FloatBits(scaled) >> 23) - 127, 126);
    factor = length * BitsFloat(static_cast<uint32_t>(127 - exponent) << 23);
    top = static_cast<float>(exponent) * 0.693147181f;
  }
};

// The position of row `row` of a job of a KV kind.
__device__ __forceinline__ int PositionOf(const AttentionShape& shape, const AttendJob& job,
                                          int row) {
  return job.block * shape.block + job.block_offset + row;
}

__device__ __forceinline__ float Widen(float x) { return x; }
__device__ __forceinline__ float Widen(Bf16 x) { return WidenBf16(x); }
__device__ __forceinline__ void Round(float x, float* out) { *out = x; }
__device__ __forceinline__ void Round(float x, Bf16* out) { *out = RoundBf16(x); }

__device__ __forceinline__ float Power(float x, int power) {
  float result = 1, square = x;
  for (; power > 0; power >>= 1) {
    if (power & 1) result *= square;
    square *= square;
  }
  return result;
}

// The tiles I <= J of pair `pair`, counted in the order of packed features.
__device__ __forceinline__ void TilesOf(int pair, int tiles, int* I, int* J) {
  int i = 0;
  while (pair >= tiles - i) {
    pair -= tiles - i;
    ++i;
  }
  *I = i;
  *J = i + pair;
}

}  // namespace polysketch::cuda
