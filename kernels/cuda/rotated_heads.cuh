// Heads of queries and keys, rotated: for every kernel that rotates them, with the same bits.
#pragma once

#include "kernels/cuda/norm_row.cuh"

namespace polysketch::cuda {

// Where the heads of q and k are, and their elements. Row r of them is head r % (heads + kv_heads)
// of token r / (heads + kv_heads), those of q first.
struct HeadRows {
  const float* qkv;      // [rows, heads + 2 kv_heads, head_dim]
  const float* cos_sin;  // null: nothing is rotated
  int64_t rows;          // tokens
  int heads, kv_heads, head_dim;

  __host__ __device__ int64_t count() const { return rows * (heads + kv_heads); }
};

struct HeadRow {
  int64_t token;
  const float* from;
  bool is_key;
  int64_t to;  // offset in q or in k

  __device__ __forceinline__ HeadRow(const HeadRows& all, int64_t row)
      : token(row / (all.heads + all.kv_heads)) {
    const auto head = static_cast<int>(row % (all.heads + all.kv_heads));
    from = all.qkv + (token * (all.heads + 2 * all.kv_heads) + head) * all.head_dim;
    is_key = head >= all.heads;
    to = (is_key ? token * all.kv_heads + head - all.heads : token * all.heads + head) *
         all.head_dim;
  }
};

__device__ __forceinline__ float RotatedFirst(float even, float odd, float cosine, float sine) {
  return fmaf(even, cosine, -(odd * sine));
}
__device__ __forceinline__ float RotatedSecond(float even, float odd, float cosine, float sine) {
  return fmaf(odd, cosine, even * sine);
}

// Elements i to i + 3 of a rotated head of d elements, whole groups of eight aligned to 16 bytes.
// cos_sin: those of its token.
__device__ __forceinline__ Quad LoadRotated(const float* from, const float* cos_sin, int d, int i) {
  const int half = d / 2, pair = i < half ? i : i - half;
  const Quad cosines = LoadQuad(cos_sin, pair, half, true);
  const Quad sines = LoadQuad(cos_sin + half, pair, half, true);
  const Quad first = LoadQuad(from, 2 * pair, d, true);
  const Quad second = LoadQuad(from, 2 * pair + 4, d, true);
  Quad out;
  for (int c = 0; c < 4; ++c) {
    const float even = c < 2 ? first.v[2 * c] : second.v[2 * c - 4];
    const float odd = c < 2 ? first.v[2 * c + 1] : second.v[2 * c - 3];
    out.v[c] = i < half ? RotatedFirst(even, odd, cosines.v[c], sines.v[c])
                        : RotatedSecond(even, odd, cosines.v[c], sines.v[c]);
  }
  return out;
}

}  // namespace polysketch::cuda
