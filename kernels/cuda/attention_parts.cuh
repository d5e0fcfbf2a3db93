// The sums of attention on tensor cores: bf16 operands, float32 sums.
//
// A query's sum consists of parts with fixed boundaries: 128 features of the far state, or 64 keys
// of a block. Each part is summed from zero, and parts are then added in order (Merge). So a warp
// that processes all parts of its rows (prefill) and many thread blocks that process one part each
// (decoding) compute the same bits. A row of a tensor core tile does not depend on the other rows.
//
// Phi is never in memory: a step covers 16 features (i0, j0..j0+7), (i0 + 1, j0..j0+7), and a
// register of the A fragment is a pair of x_j times a broadcast x_i. Fragment layouts: ptx.cuh;
// g = lane / 4, t = lane % 4.
#pragma once

#include "kernels/cuda/attention_decay.cuh"
#include "kernels/cuda/attention_mx.cuh"
#include "kernels/cuda/attention_shape.cuh"
#include "kernels/cuda/planted.h"

namespace polysketch::cuda {

constexpr int kPartFeatures = 128;
constexpr int kPartKeysTensor = 64;  // = kPartKeys of attention_plan.h
// Elements after each shared row, so that ldmatrix has no bank conflicts.
constexpr int kRowPad = 8;

__host__ __device__ constexpr int PadTo16(int n) { return (n + 15) / 16 * 16; }

// Shared memory of a part. D: head size.
template <int D>
struct PartBuffer {
  // Far: S [128][D + pad] or, of its copy, a tile; z [128]. Near: keys [64][PadTo16(near_dim) + pad] and
  // values [64][D + pad] or, of 8-bit numbers, two tiles; with a decay gate G [64].
  static __host__ __device__ constexpr int64_t Bytes(int near_dim) {
    const int64_t far = kPartFeatures * ((D + kRowPad) * 2 + 4);
    const int64_t near = kPartKeysTensor * ((PadTo16(near_dim) + kRowPad + D + kRowPad) * 2 + 4);
    return far > near ? far : near;
  }
  Bf16* sums;
  float* weights;
  Bf16* keys;
  Bf16* values;
  float* decay_sums;
  __device__ PartBuffer(void* memory, int near_dim) {
    sums = static_cast<Bf16*>(memory);
    weights = reinterpret_cast<float*>(sums + kPartFeatures * (D + kRowPad));
    keys = static_cast<Bf16*>(memory);
    values = keys + kPartKeysTensor * (PadTo16(near_dim) + kRowPad);
    decay_sums = reinterpret_cast<float*>(values + kPartKeysTensor * (D + kRowPad));
  }
  // The operands of products: Bf16*, or with MX MxTile.
  template <bool MX>
  __device__ __forceinline__ auto Far() const {
    return Operand<MX>(sums, kPartFeatures);
  }
  template <bool MX>
  __device__ __forceinline__ auto Keys() const {
    return Operand<MX>(keys, kPartKeysTensor);
  }
  template <bool MX>
  __device__ __forceinline__ auto Values() const {
    auto* after_keys = reinterpret_cast<Bf16*>(Keys<true>().End(kPartKeysTensor));
    return Operand<MX>(MX ? after_keys : values, kPartKeysTensor);
  }

 private:
  template <bool MX>
  static __device__ __forceinline__ auto Operand(Bf16* memory, int rows) {
    if constexpr (MX) {
      return MxTile<D>(memory, rows);
    } else {
      return memory;
    }
  }
};

// Calls compute(part, stage) for all parts in order. load(part, stage) starts the copies of a part
// to one of two stages of shared memory; the caller has called load(0, 0). The copies of a part
// overlap with the computation of the part before it.
template <typename Load, typename Compute>
__device__ __forceinline__ void ForParts(int64_t parts, const Load& load, const Compute& compute) {
  CommitCopies();
  for (int64_t part = 0; part < parts; ++part) {
    if (part + 1 < parts) load(part + 1, static_cast<int>((part + 1) % 2));
    CommitCopies();
    WaitCopies<1>();
    __syncthreads();  // all threads see this part, and before the first part the rows of the block
    compute(part, static_cast<int>(part % 2));
    // All threads have read this part: its stage may be overwritten.
    if (!PS_PLANTED(MISSING_BARRIER)) __syncthreads();
  }
  WaitCopies<0>();
}

// Starts the copy of [rows][width] 16-bit elements, rows `stride` apart, to padded shared rows of
// `to_width`; width, stride and to_width are multiples of 8. Rows from `valid` on and columns from
// `width` on become zero.
__device__ __forceinline__ void CopyRows(const Bf16* from, int64_t stride, int width, int valid,
                                         Bf16* to, int to_width, int rows, int thread,
                                         int threads) {
  for (RowPieces at(to_width / 8, thread, threads); at.row < rows; at.Next()) {
    const int row = at.row, column = at.piece * 8;
    const bool inside = row < valid && column < width;
    CopyAsync16(to + row * (to_width + kRowPad) + column,
                inside ? from + row * stride + column : from, inside);
  }
}

// Rounds float32 queries [rows][width], `stride` apart, into padded shared rows of `to_width`. Rows
// from `valid` on become zero.
__device__ __forceinline__ void RoundQueries(const float* from, int64_t stride, int width,
                                             int valid, Bf16* to, int to_width, int rows,
                                             int thread, int threads) {
  for (RowPieces at(to_width / 2, thread, threads); at.row < rows; at.Next()) {
    const int row = at.row, column = at.piece * 2;
    float low = 0, high = 0;
    if (row < valid && column < width) {  // widths are multiples of 8
      low = from[row * stride + column];
      high = from[row * stride + column + 1];
    }
    *reinterpret_cast<uint32_t*>(to + row * (to_width + kRowPad) + column) = PackBf16(low, high);
  }
}

// RoundQueries of rows that are rounded already.
__device__ __forceinline__ void CopyQueries(const Bf16* from, int64_t stride, int width, int valid,
                                            Bf16* to, int to_width, int rows, int thread,
                                            int threads) {
  for (RowPieces at(to_width / 8, thread, threads); at.row < rows; at.Next()) {
    const int row = at.row, column = at.piece * 8;
    uint4 chunk{};
    if (row < valid && column < width) {
      chunk = *reinterpret_cast<const uint4*>(from + row * stride + column);
    }
    *reinterpret_cast<uint4*>(to + row * (to_width + kRowPad) + column) = chunk;
  }
}

// Starts the copy of part `part` of a far sum: of S [features][D] as queries read it, and of z
// [features]. COPY, here and below: queries read the copy of S (mx_int8.h).
template <int D, bool COPY = false>
__device__ __forceinline__ void LoadFarPart(const AttentionShape& shape, const void* S,
                                            const float* z, int part, const PartBuffer<D>& buffer,
                                            int thread, int threads) {
  const int first = part * kPartFeatures;
  const int count = min(kPartFeatures, shape.features - first);
  if constexpr (COPY) {
    LoadMxRows<D>({static_cast<const uint8_t*>(S), shape.features}, first, count, kPartFeatures,
                  buffer.template Far<true>(), thread, threads);
  } else {
    CopyRows(static_cast<const Bf16*>(S) + static_cast<int64_t>(first) * D, D, D, count,
             buffer.sums, D, kPartFeatures, thread, threads);
  }
  for (int i = thread; i < kPartFeatures / 4; i += threads) {
    const bool inside = 4 * i < count;
    CopyAsync16(buffer.weights + 4 * i, inside ? z + first + 4 * i : z, inside);
  }
}

// Rows of 16-bit elements, `stride` apart.
struct RowArray {
  const Bf16* data;
  int64_t stride;
  __device__ __forceinline__ const Bf16* row(int64_t i) const { return data + i * stride; }
};

// Starts the copy of keys and values [first, first + 64) of a block that holds `count` tokens.
template <int D>
__device__ __forceinline__ void LoadNearPart(const AttentionShape& shape, const RowArray& keys,
                                             const RowArray& values, int first, int count,
                                             const PartBuffer<D>& buffer, int thread, int threads) {
  CopyRows(keys.row(first), keys.stride, shape.near_dim, count - first, buffer.keys,
           PadTo16(shape.near_dim), kPartKeysTensor, thread, threads);
  CopyRows(values.row(first), values.stride, D, count - first, buffer.values, D, kPartKeysTensor,
           thread, threads);
}

// LoadNearPart of a cache of 8-bit numbers: keys and values are its arrays in a block.
template <int D>
__device__ __forceinline__ void LoadMxNearPart(const AttentionShape& shape, const uint8_t* keys,
                                               const uint8_t* values, int first, int count,
                                               const PartBuffer<D>& buffer, int thread,
                                               int threads) {
  LoadMxRows<D>({keys, shape.block}, first, count - first, kPartKeysTensor,
                buffer.template Keys<true>(), thread, threads);
  LoadMxRows<D>({values, shape.block}, first, count - first, kPartKeysTensor,
                buffer.template Values<true>(), thread, threads);
}

// Calls fn(m, half, row) for the rows of a warp's M tiles that this lane has elements of: row =
// 16 m + 8 half + g, elements 2 half and 2 half + 1 of tile m.
template <int M, typename Fn>
__device__ __forceinline__ void ForRows(const Fn& fn) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      fn(m, half, 16 * m + 8 * half + static_cast<int>(threadIdx.x) % kWarpSize / 4);
    }
  }
}

// A warp's sums over its 16 * M rows: of values, and of weights in the lanes with t = 0 (elements 0
// and 2 of a tile; elements 1 and 3 are those of the lower halves of z until FarPart adds them).
// top: for softmax, the largest score of rows g and g + 8 of each tile; 0 in a far part of a window, whose
// weights are no exponentials.
template <int D, int M>
struct RowSums {
  float values[M][D / 8][4];
  float weights[M][4];
  float top[M][2];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) values[m][n][i] = 0;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[m][i] = 0;
      top[m][0] = top[m][1] = -INFINITY;
    }
  }
};

// How two sums of a row are joined: for softmax, relative to the larger of both tops.
struct Joint {
  float top = 0, of_total = 1, of_part = 1;
  Joint() = default;
  __device__ __forceinline__ Joint(bool softmax, float total_top, float part_top) {
    if (!softmax) return;
    top = fmaxf(total_top, part_top);
    // A part, or a total, without a key has no top and adds nothing. expf(0) is 1.
    const float lower = fminf(total_top, part_top);
    const float power = expf(lower - top), factor = lower == -INFINITY ? 0.0f : power;
    of_total = total_top < part_top ? factor : 1.0f;
    of_part = total_top < part_top ? 1.0f : factor;
  }
  __device__ __forceinline__ float Add(float total, float part) const {
    return fmaf(total, of_total, part * of_part);
  }
};

template <int D, int M>
__device__ __forceinline__ void Merge(bool softmax, const RowSums<D, M>& part,
                                      RowSums<D, M>* total) {
  ForRows<M>([&](int m, int half, int) {
    const Joint joint(softmax, total->top[m][half], part.top[m][half]);
    total->top[m][half] = joint.top;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        total->values[m][n][i] = joint.Add(total->values[m][n][i], part.values[m][n][i]);
      }
    }
    total->weights[m][2 * half] = joint.Add(total->weights[m][2 * half], part.weights[m][2 * half]);
  });
}

// sums += a [16 x 16] of each tile times rows k to k + 15 of `right`, padded rows of `columns`
// elements; columns is a multiple of 16, at most W.
template <int W, int M>
__device__ __forceinline__ void AddProduct(const uint32_t (&a)[M][4], const Bf16* right,
                                           int columns, int k, float (&sums)[M][W / 8][4]) {
  const int lane = threadIdx.x % kWarpSize;
  const Bf16* row = right + (k + lane % 16) * (columns + kRowPad) + lane / 16 * 8;
#pragma unroll
  for (int n = 0; n < W / 8; n += 2) {
    if (8 * n >= columns) continue;
    uint32_t b[4];
    LoadMatrix4T(b, row + 8 * n);
#pragma unroll
    for (int m = 0; m < M; ++m) {
      MmaBf16(sums[m][n], a[m], b[0], b[1]);
      MmaBf16(sums[m][n + 1], a[m], b[2], b[3]);
    }
  }
}

// Adds the product of `a` and the column (b0, b1) to the sums of weights.
template <int D, int M>
__device__ __forceinline__ void AddWeights(const uint32_t (&a)[M][4], uint32_t b0, uint32_t b1,
                                           RowSums<D, M>* sums) {
#pragma unroll
  for (int m = 0; m < M; ++m) MmaBf16(sums->weights[m], a[m], b0, b1);
}

// AddProduct for the sums of values, and AddWeights. right: Bf16* or MxTile<D>.
template <int D, int M, typename Right>
__device__ __forceinline__ void MultiplyStep(const uint32_t (&a)[M][4], const Right& right, int k,
                                             uint32_t b0, uint32_t b1, RowSums<D, M>* sums) {
  AddProduct<D, M>(a, right, D, k, sums->values);
  AddWeights<D, M>(a, b0, b1, sums);
}

// z as a B fragment: its bf16 rounding in column 0, the remainder in column 1.
__device__ __forceinline__ uint32_t WeightPair(const float* z) {
  const int g = threadIdx.x % kWarpSize / 4;
  const uint32_t upper = PackBf16(z[0], z[1]);
  if (g == 0) return upper;
  if (g > 1) return 0;
  return PackBf16(z[0] - WidenBf16(static_cast<Bf16>(upper)),
                  z[1] - WidenBf16(static_cast<Bf16>(upper >> 16)));
}

// Adds a far part to sums; the remainders of z go to the odd elements of the weights. queries: the
// warp's 16 * M rows of far queries, `row_size` elements apart, in shared memory.
template <int D, int M, bool COPY = false>
__device__ __forceinline__ void AddFarPart(const AttentionShape& shape, int part,
                                           const Bf16* queries, int row_size,
                                           const PartBuffer<D>& buffer, RowSums<D, M>* sums) {
  const int lane = threadIdx.x % kWarpSize, t = lane % 4;
  const auto pair_at = [&](int row, int column) {
    return *reinterpret_cast<const uint32_t*>(queries + row * row_size + column);
  };
  const int first = part * kPartFeatures;
  const int count = min(kPartFeatures, shape.features - first);
  uint32_t q_j[M][2] = {};
  int I = 0, J = 0;
  for (int k = 0; k < count; k += 16) {
    uint32_t a[M][4];
    if (shape.tiles > 0) {
      if (k % 64 == 0) {  // the next pair of tiles
        TilesOf((first + k) / 64, shape.tiles, &I, &J);
        ForRows<M>([&](int m, int half, int row) {
          q_j[m][half] = pair_at(row, 8 * J + 2 * t);
          // Off-diagonal tiles count twice. Doubling is exact.
          if (I != J) q_j[m][half] = MultiplyBf16(q_j[m][half], 0x40004000u);
        });
      }
      ForRows<M>([&](int m, int half, int row) {
        const uint32_t q_i = pair_at(row, 8 * I + k % 64 / 8);
        a[m][half] = MultiplyBf16(BroadcastLow(q_i), q_j[m][half]);
        a[m][2 + half] = MultiplyBf16(BroadcastHigh(q_i), q_j[m][half]);
      });
    } else {
#pragma unroll
      for (int m = 0; m < M; ++m) {
        LoadMatrix4(a[m], queries + (16 * m + lane % 16) * row_size + first + k + lane / 16 * 8);
      }
    }
    const float* z = buffer.weights + k + 2 * t;
    if constexpr (COPY) {  // z is read last: fewer registers are live in the product
      AddProduct<D, M>(a, buffer.template Far<true>(), D, k, sums->values);
      AddWeights<D, M>(a, WeightPair(z), WeightPair(z + 8), sums);
    } else {
      MultiplyStep<D, M>(a, buffer.sums, k, WeightPair(z), WeightPair(z + 8), sums);
    }
  }
}

template <int D, int M, bool COPY = false>
__device__ __forceinline__ void FarPart(const AttentionShape& shape, int part, const Bf16* queries,
                                        int row_size, const PartBuffer<D>& buffer,
                                        RowSums<D, M>* sums) {
  sums->Clear();
  AddFarPart<D, M, COPY>(shape, part, queries, row_size, buffer, sums);
#pragma unroll
  for (int m = 0; m < M; ++m) {
    sums->weights[m][0] += sums->weights[m][1];
    sums->weights[m][2] += sums->weights[m][3];
  }
}

// Multiplies the sums of all far parts by e^G of each row. row_sums: G of the warp's rows, of which
// there are `count`.
template <int D, int M>
__device__ __forceinline__ void DecayFarPart(const float* row_sums, int count,
                                             RowSums<D, M>* sums) {
  ForRows<M>([&](int m, int half, int row) {
    const float kept = row < count ? expf(row_sums[row]) : 0.0f;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      sums->values[m][n][2 * half] *= kept;
      sums->values[m][n][2 * half + 1] *= kept;
    }
    sums->weights[m][2 * half] *= kept;
  });
}

// Brings the sums of all far parts of a window, of which each has the top 0, to the scale of FarScale.
// position: of the warp's first row.
template <int D, int M>
__device__ __forceinline__ void ScaleFarPart(const AttentionShape& shape, int position,
                                             RowSums<D, M>* sums) {
  const int lane = threadIdx.x % kWarpSize, t = lane % 4;
  ForRows<M>([&](int m, int half, int row) {
    const float weight = __shfl_sync(kFullWarp, sums->weights[m][2 * half], lane - t);
    const FarScale scale(shape, position + row, weight);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      sums->values[m][n][2 * half] *= scale.factor;
      sums->values[m][n][2 * half + 1] *= scale.factor;
    }
    sums->weights[m][2 * half] *= scale.factor;
    sums->top[m][half] = scale.top;
  });
}

template <int M>
__device__ __forceinline__ void ClearScores(float (&scores)[M][2][4]) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[m][0][i] = scores[m][1][i] = 0;
  }
}

// Dot products of the warp's rows with keys `key` to key + 15, padded rows of `dim` elements; dim
// is a multiple of 16. scores[m][n] is the tile of keys 8 n to 8 n + 7.
template <int M>
__device__ __forceinline__ void Scores(int dim, const Bf16* queries, int row_size, const Bf16* keys,
                                       int key, float (&scores)[M][2][4]) {
  const int lane = threadIdx.x % kWarpSize;
  const int key_size = dim + kRowPad;
  ClearScores<M>(scores);
  const Bf16* key_row = keys + (key + lane / 16 * 8 + lane % 8) * key_size + lane / 8 % 2 * 8;
  for (int k = 0; k < dim; k += 16) {
    uint32_t b[4];
    LoadMatrix4(b, key_row + k);
#pragma unroll
    for (int m = 0; m < M; ++m) {
      uint32_t a[4];
      LoadMatrix4(a, queries + (16 * m + lane % 16) * row_size + k + lane / 16 * 8);
      MmaBf16(scores[m][0], a, b[0], b[1]);
      MmaBf16(scores[m][1], a, b[2], b[3]);
    }
  }
}

// Scores of a tile of 8-bit numbers, rows of D elements.
template <int M, int D>
__device__ __forceinline__ void Scores(int, const Bf16* queries, int row_size,
                                       const MxTile<D>& keys, int key, float (&scores)[M][2][4]) {
  const int lane = threadIdx.x % kWarpSize;
  ClearScores<M>(scores);
#pragma unroll 2
  for (int block = 0; block < D / kMxBlock; ++block) {
    uint32_t b[2][2][2];
    MxKeys<D>(keys, key, block, b);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int m = 0; m < M; ++m) {
        uint32_t a[4];
        LoadMatrix4(a, queries + (16 * m + lane % 16) * row_size + block * kMxBlock + 16 * c +
                           lane / 16 * 8);
        MmaBf16(scores[m][0], a, b[0][c][0], b[0][c][1]);
        MmaBf16(scores[m][1], a, b[1][c][0], b[1][c][1]);
      }
    }
  }
}

// Makes A fragments from the layout of Scores: value(m, n, half, i) is the value of element
// [m][n][2 * half + i], in row 16 m + 8 half + g and column 8 n + 2 t + i.
template <int M, typename Value>
__device__ __forceinline__ void Fragments(uint32_t (&a)[M][4], const Value& value) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        a[m][2 * n + half] = PackBf16(value(m, n, half, 0), value(m, n, half, 1));
      }
    }
  }
}

// The query heads of a kv head as rows of tiles: of one token, all read the same state and keys.
struct HeadTiles {
  Divisor of_kv;  // tiles of a kv head
  int heads = 1;  // of a tile; the last one of a kv head may have fewer
  HeadTiles(int group, int most_heads)
      : of_kv((group + most_heads - 1) / most_heads),
        heads((group + of_kv.value() - 1) / of_kv.value()) {}
  // Tiles of a job.
  __host__ __device__ int Of(const AttentionShape& shape, int tokens) const {
    return tokens > 1 ? shape.heads : shape.kv_heads * of_kv.value();
  }
};

// The rows of a tile: tokens of a job and of one query head, or, `of_token`, query heads of one kv head.
struct QueryTile {
  int head;  // of the first row
  int kv;
  int rows;
  bool of_token;

  // All tokens of a job.
  __device__ __forceinline__ QueryTile(const AttentionShape& shape, const AttendJob& job, int head_)
      : head(head_), kv(KvHead(shape, head)), rows(job.count), of_token(false) {}
  // Tile `index` of a job.
  __device__ __forceinline__ QueryTile(const AttentionShape& shape, const AttendJob& job,
                                       const HeadTiles& tiles, int index)
      : QueryTile(shape, job, index) {
    if (job.count > 1) return;
    const int of_kv = tiles.of_kv.Quotient(index), group = shape.group.value();
    const int first = (index - of_kv * tiles.of_kv.value()) * tiles.heads;
    head = of_kv * group + first;
    kv = KvHead(shape, head);
    rows = min(tiles.heads, group - first);
    of_token = true;
  }
  __device__ __forceinline__ int Token(int row) const { return of_token ? 0 : row; }
  // Where the batch has a row, counted in rows of a head, and the distance from one row to the next.
  __device__ __forceinline__ int64_t Row(const AttentionShape& shape, const AttendJob& job,
                                         int row) const {
    return static_cast<int64_t>(job.row) * shape.heads + head + int64_t{row} * Stride(shape);
  }
  __device__ __forceinline__ int Stride(const AttentionShape& shape) const {
    return of_token ? 1 : shape.heads;
  }
};

// The keys of a part that each row of a warp attends to: those before Of(m, half).
struct KeyLimits {
  int first_row_limit;  // of the warp's first row: its block offset - the part's first key + 1
  int count;            // keys of the part
  bool causal;          // false: all keys count, as in earlier blocks and for one token
  __device__ __forceinline__ int Of(int m, int half) const {
    const int g = threadIdx.x % kWarpSize / 4;
    const int own = first_row_limit + 16 * m + 8 * half + g;
    return causal && own < count ? own : count;
  }
  __device__ __forceinline__ bool Sees(int m, int half, int key) const { return key < Of(m, half); }
  // The keys that every row of the warp attends to.
  __device__ __forceinline__ int Common() const {
    return causal && first_row_limit < count ? first_row_limit : count;
  }
  // The first key of the part that no row of the warp's M tiles attends to, nor to any after it.
  __device__ __forceinline__ int End(int M) const {
    const int own = first_row_limit + 16 * M - 1;
    return causal && own < count ? own : count;
  }
};

// KeyLimits with a window: of the keys before them those from `first` + `step` times the row on, and
// those before `sinks`.
struct WindowLimits : KeyLimits {
  int first, step, sinks;
  __device__ __forceinline__ int From(int row) const { return first + step * row; }
  __device__ __forceinline__ bool Sees(int m, int half, int key) const {
    const int g = threadIdx.x % kWarpSize / 4;
    return KeyLimits::Sees(m, half, key) && (key >= From(16 * m + 8 * half + g) || key < sinks);
  }
};

// The limits of a warp's rows, from row `row` of a tile on, in the part of block `block` that begins
// with its key `key`. WINDOW: of a model with a window.
template <bool WINDOW>
__device__ __forceinline__ auto LimitsOf(const AttentionShape& shape, const AttendJob& job,
                                         const QueryTile& tile, int row, int block, int key) {
  const int held = block < job.block ? shape.block : job.block_offset + job.count;
  // The last token of a block attends to all keys that the block holds.
  const KeyLimits limits{job.block_offset + row - key + 1, min(kPartKeysTensor, held - key),
                         !tile.of_token && block == job.block};
  if constexpr (WINDOW) {
    // The part's first key, counted from the first token of the queries' block.
    const int part = key - (job.block - block) * shape.block;
    const int sinks = shape.sinks - block * shape.block - key;
    return WindowLimits{limits, job.block_offset - ReachOf(shape, job, row) - part,
                        shape.sliding && !tile.of_token ? 1 : 0, sinks};
  } else {
    return limits;
  }
}

// The largest score of every row over the keys that it attends to, or -inf without any. Limits:
// KeyLimits or WindowLimits.
template <int M, typename Keys, typename Limits>
__device__ __forceinline__ void Tops(const AttentionShape& shape, const Bf16* queries, int row_size,
                                     const Keys& keys, const Limits& limits, float (&top)[M][2]) {
  const int t = threadIdx.x % 4;
  for (int key = 0; key < limits.End(M); key += 16) {
    float scores[M][2][4];
    Scores<M>(PadTo16(shape.near_dim), queries, row_size, keys, key, scores);
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (limits.Sees(m, i / 2, key + 8 * n + 2 * t + i % 2)) {
            top[m][i / 2] = fmaxf(top[m][i / 2], scores[m][n][i] * shape.scale);
          }
        }
      }
    }
  }
  ForRows<M>([&](int m, int half, int) {
    top[m][half] = fmaxf(top[m][half], __shfl_xor_sync(kFullWarp, top[m][half], 1));
    top[m][half] = fmaxf(top[m][half], __shfl_xor_sync(kFullWarp, top[m][half], 2));
  });
}

// power: 0 is softmax.
__device__ __forceinline__ float NearWeight(int power, float scale, float dot, float top) {
  if (power == 0) return expf(dot * scale - top);
  if (power == 1) return dot;
  const float square = dot * dot;
  if (power == 2) return square;
  if (power == 4) return square * square;
  return Power(dot, power);
}

constexpr int kAnyPower = -1;

// Calls run.operator()<POWER>() with the power of a shape, or kAnyPower: what the compiler knows costs
// no branch for each element.
template <typename Run>
__device__ __forceinline__ void WithNearPower(const AttentionShape& shape, const Run& run) {
  switch (shape.near_power) {
    case 0:
      return run.template operator()<0>();
    case 1:
      return run.template operator()<1>();
    case 2:
      return run.template operator()<2>();
    case 4:
      return run.template operator()<4>();
    default:
      return run.template operator()<kAnyPower>();
  }
}

// decay: NoDecay or NearDecay. MX_CACHE: of a cache of 8-bit numbers.
template <int D, int M, bool MX_CACHE = false, typename Limits, typename Decay>
__device__ __forceinline__ void NearPart(const AttentionShape& shape, const Bf16* queries,
                                         int row_size, const PartBuffer<D>& buffer,
                                         const Limits& limits, const Decay& decay,
                                         RowSums<D, M>* sums) {
  const int lane = threadIdx.x % kWarpSize, t = lane % 4;
  const uint32_t ones = lane / 4 == 0 ? 0x3f803f80u : 0u;
  sums->Clear();
  if (shape.near_power == 0) {
    Tops<M>(shape, queries, row_size, buffer.template Keys<MX_CACHE>(), limits, sums->top);
  }
  WithNearPower(shape, [&]<int POWER>() {
    const int power = POWER == kAnyPower ? shape.near_power : POWER;
    for (int key = 0; key < limits.End(M); key += 16) {
      float scores[M][2][4];
      Scores<M>(PadTo16(shape.near_dim), queries, row_size, buffer.template Keys<MX_CACHE>(), key,
                scores);
      uint32_t a[M][4];
      Fragments<M>(a, [&](int m, int n, int half, int i) {
        const int column = key + 8 * n + 2 * t + i;
        const float weight =
            NearWeight(power, shape.scale, scores[m][n][2 * half + i], sums->top[m][half]);
        return limits.Sees(m, half, column) ? decay.Weight(weight, m, half, column) : 0.0f;
      });
      MultiplyStep<D, M>(a, buffer.template Values<MX_CACHE>(), key, ones, ones, sums);
    }
  });
}

}  // namespace polysketch::cuda
