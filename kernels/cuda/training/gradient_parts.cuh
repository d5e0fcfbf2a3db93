// The parts of the gradients of a tile of rows.
//
// With D_t the denominator of a row, a = g / D_t and e = -(g . out) / D_t, the gradient with
// respect to a weight is dw[t,s] = a_t . v_s + e_t. So, with p the power of the near weights:
//   near   dq_t += sum_s p (q_t . k_s)^(p-1) dw[t,s] k_s; dk_s with t and s exchanged
//   far    with S = sum_s phi(y_s) [v_s, 1] over the earlier blocks, the gradient of phi(x_t) is
//          G = S [a_t, e_t], a row of features. phi is symmetric, so dx_i = 2 sum_j G_ij x_j. With
//          R = sum_t phi(x_t) [a_t, e_t] over the later blocks, dy_s follows from R [v_s, 1] in the
//          same way, and dv_s is phi(y_s) R. In the linear form phi is the row itself: dx = G.
// G is kept in accumulators of the tensor cores, 16 features at a time. With a decay gate the
// gradients of near weights have the factor of the weights, and what far parts bring to a row has a
// factor of its own: e^(G_t) of a query, e^(G_b - G_s) of a key (states.cuh).
#pragma once

#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/planted.h"

namespace polysketch::cuda {

// d (dot^power) / d dot.
__device__ __forceinline__ float NearSlope(int power, float dot) {
  if (power == 2) return 2 * dot;
  if (power == 4) return 4 * dot * dot * dot;
  return static_cast<float>(power) * Power(dot, power - 1);
}

// Sums each of eight values over the four lanes of a quad. Lane t receives the sums 2t and 2t + 1.
__device__ __forceinline__ void QuadScatter(const float (&values)[8], float (&out)[2]) {
  const int t = threadIdx.x % 4;
  float half[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float keep = t < 2 ? values[i] : values[4 + i];
    const float send = t < 2 ? values[4 + i] : values[i];
    half[i] = keep + __shfl_xor_sync(kFullWarp, send, 2);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float keep = t % 2 == 0 ? half[i] : half[2 + i];
    const float send = t % 2 == 0 ? half[2 + i] : half[i];
    out[i] = keep + __shfl_xor_sync(kFullWarp, send, 1);
  }
}

// A warp's 16 * M rows in shared memory.
struct FeatureRows {
  const Bf16* x;      // far rows, x_size apart
  const Bf16* duals;  // the rows that states are multiplied with, a or v: [.][D + pad]
  float* gradients;   // of x, gradient_size apart; a lane adds to its own elements
  int x_size, gradient_size;
};

// Adds far part `part` to the gradients of x. scalars: the last column of the duals, e or 1, of
// rows g and g + 8 of each tile. VALUES: also adds phi(x) times the part's sums to values.
template <int D, int M, bool VALUES>
__device__ __forceinline__ void AddFeatureGradients(const AttentionShape& shape, int part,
                                                    const FeatureRows& rows,
                                                    const float (&scalars)[M][2],
                                                    const PartBuffer<D>& buffer,
                                                    float (&values)[M][D / 8][4]) {
  const int t = threadIdx.x % 4;
  const int first = part * kPartFeatures;
  const int count = min(kPartFeatures, shape.features - first);
  for (int pair = 0; pair < count; pair += 64) {
    int I, J;
    TilesOf((first + pair) / 64, shape.tiles, &I, &J);
    uint32_t x_j[M][2], counted[M][2];
    float by_row[M][2][8], by_column[M][2][2] = {};
    ForRows<M>([&](int m, int half, int r) {
      const Bf16* row = rows.x + r * rows.x_size;
      x_j[m][half] = *reinterpret_cast<const uint32_t*>(row + 8 * J + 2 * t);
      // Off-diagonal tiles of phi(x) count twice. Doubling is exact.
      counted[m][half] = I != J ? MultiplyBf16(x_j[m][half], 0x40004000u) : x_j[m][half];
    });
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) {
      float G[M][2][4];
      Scores<M>(D, rows.duals, D + kRowPad, buffer.sums, pair + 16 * chunk, G);
      uint32_t phi[M][4];
      ForRows<M>([&](int m, int half, int r) {
        const Bf16* row = rows.x + r * rows.x_size;
        const uint32_t x_i = *reinterpret_cast<const uint32_t*>(row + 8 * I + 2 * chunk);
        if constexpr (VALUES) {
          phi[m][half] = MultiplyBf16(BroadcastLow(x_i), counted[m][half]);
          phi[m][2 + half] = MultiplyBf16(BroadcastHigh(x_i), counted[m][half]);
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int i = 2 * chunk + n;
          const float* z = buffer.weights + pair + 8 * i + 2 * t;
          const float low = fmaf(scalars[m][half], z[0], G[m][n][2 * half]);
          const float high = fmaf(scalars[m][half], z[1], G[m][n][2 * half + 1]);
          by_row[m][half][i] = fmaf(low, WidenBf16(static_cast<Bf16>(x_j[m][half])),
                                    high * WidenBf16(static_cast<Bf16>(x_j[m][half] >> 16)));
          const float x = WidenBf16(static_cast<Bf16>(n == 0 ? x_i : x_i >> 16));
          by_column[m][half][0] = fmaf(low, x, by_column[m][half][0]);
          by_column[m][half][1] = fmaf(high, x, by_column[m][half][1]);
        }
      });
      if constexpr (VALUES) AddProduct<D, M>(phi, buffer.sums, D, pair + 16 * chunk, values);
    }
    ForRows<M>([&](int m, int half, int r) {
      float of_I[2];
      if (PS_PLANTED(SWAPPED_GRADIENT)) {
        const float kept = by_row[m][half][0];
        by_row[m][half][0] = by_row[m][half][1];
        by_row[m][half][1] = kept;
      }
      QuadScatter(by_row[m][half], of_I);
      float* gradient = rows.gradients + r * rows.gradient_size + 2 * t;
      gradient[8 * I] = fmaf(2.0f, of_I[0], gradient[8 * I]);
      gradient[8 * I + 1] = fmaf(2.0f, of_I[1], gradient[8 * I + 1]);
      if (I != J) {
        gradient[8 * J] = fmaf(2.0f, by_column[m][half][0], gradient[8 * J]);
        gradient[8 * J + 1] = fmaf(2.0f, by_column[m][half][1], gradient[8 * J + 1]);
      }
    });
  }
}

// AddFeatureGradients for features that are the rows themselves.
template <int D, int M, bool VALUES>
__device__ __forceinline__ void AddRowGradients(const AttentionShape& shape, int part,
                                                const FeatureRows& rows,
                                                const float (&scalars)[M][2],
                                                const PartBuffer<D>& buffer,
                                                float (&values)[M][D / 8][4]) {
  const int lane = threadIdx.x % kWarpSize, t = lane % 4;
  const int first = part * kPartFeatures;
  const int count = min(kPartFeatures, shape.features - first);
  for (int feature = 0; feature < count; feature += 16) {
    float G[M][2][4];
    Scores<M>(D, rows.duals, D + kRowPad, buffer.sums, feature, G);
    ForRows<M>([&](int m, int half, int r) {
      float* gradient = rows.gradients + r * rows.gradient_size + first + feature + 2 * t;
      const int pair = PS_PLANTED(SWAPPED_ROW_GRADIENT) ? t ^ 1 : t;
      const float* z = buffer.weights + feature + 2 * pair;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        gradient[8 * n] += fmaf(scalars[m][half], z[8 * n], G[m][n][2 * half]);
        gradient[8 * n + 1] += fmaf(scalars[m][half], z[8 * n + 1], G[m][n][2 * half + 1]);
      }
    });
    if constexpr (VALUES) {
      uint32_t x[M][4];
#pragma unroll
      for (int m = 0; m < M; ++m) {
        LoadMatrix4(x[m],
                    rows.x + (16 * m + lane % 16) * rows.x_size + first + feature + lane / 16 * 8);
      }
      AddProduct<D, M>(x, buffer.sums, D, feature, values);
    }
  }
}

// ROWS: whether features may be the rows themselves.
template <int D, int M, bool VALUES, bool ROWS>
__device__ __forceinline__ void AddFarGradients(const AttentionShape& shape, int part,
                                                const FeatureRows& rows,
                                                const float (&scalars)[M][2],
                                                const PartBuffer<D>& buffer,
                                                float (&values)[M][D / 8][4]) {
  if (ROWS && shape.tiles == 0) {
    AddRowGradients<D, M, VALUES>(shape, part, rows, scalars, buffer, values);
  } else {
    AddFeatureGradients<D, M, VALUES>(shape, part, rows, scalars, buffer, values);
  }
}

// A warp's near rows and their duals in shared memory.
struct NearRows {
  const Bf16* rows;   // row_size apart
  const Bf16* duals;  // [.][D + pad]
  int row_size;
};

// Columns of the gradients of near rows that are kept in registers.
template <int D>
constexpr int NearWidth() {
  return D < 64 ? 64 : D;
}
// The same where near rows are wider than a head: those of affine_square have a constant more.
template <int D>
constexpr int WideNear() {
  return NearWidth<D>() + 16;
}

// e^(G_t - G_s) for rows that are keys and a part of queries.
template <int M>
struct QueryDecay : NearDecay<M> {
  using NearDecay<M>::NearDecay;
  __device__ __forceinline__ float Weight(float weight, int m, int half, int query) const {
    return weight * FastExp(this->keys[query] - this->rows[m][half]);
  }
};

// Adds the gradients of queries from 64 keys and values of their block in `buffer`; scalars: e;
// decay: NoDecay or NearDecay.
template <int D, int M, int N, typename Decay>
__device__ __forceinline__ void AddQueryGradients(const AttentionShape& shape, const NearRows& near,
                                                  const float (&scalars)[M][2],
                                                  const PartBuffer<D>& buffer,
                                                  const KeyLimits& limits, const Decay& decay,
                                                  float (&gradients)[M][N][4]) {
  const int t = threadIdx.x % 4, dim = PadTo16(shape.near_dim);
  for (int key = 0; key < limits.End(M); key += 16) {
    float dots[M][2][4], products[M][2][4];
    Scores<M>(dim, near.rows, near.row_size, buffer.keys, key, dots);
    Scores<M>(D, near.duals, D + kRowPad, buffer.values, key, products);
    uint32_t a[M][4];
    Fragments<M>(a, [&](int m, int n, int half, int i) {
      const int column = key + 8 * n + 2 * t + i;
      const float of_weight = products[m][n][2 * half + i] + scalars[m][half];
      const float dot = dots[m][n][2 * half + i];
      return column < limits.Of(m, half)
                 ? decay.Weight(NearSlope(shape.near_power, dot) * of_weight, m, half, column)
                 : 0.0f;
    });
    AddProduct<8 * N, M>(a, buffer.keys, dim, key, gradients);
  }
}

// Adds the gradients of keys and values from 64 queries of their block: `buffer` holds the queries
// (as keys) and their a (as values), scalars [64] their e. first_row: the block offset of the
// warp's first key - the part's first query; count: queries of the part; decay: NoDecay or QueryDecay.
template <int D, int M, int N, typename Decay>
__device__ __forceinline__ void AddKeyGradients(const AttentionShape& shape, const NearRows& near,
                                                const float* scalars, const PartBuffer<D>& buffer,
                                                int first_row, int count, const Decay& decay,
                                                float (&gradients)[M][N][4],
                                                float (&values)[M][D / 8][4]) {
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
  const int dim = PadTo16(shape.near_dim);
  for (int query = first_row > 0 ? first_row / 16 * 16 : 0; query < count; query += 16) {
    float dots[M][2][4], products[M][2][4];
    Scores<M>(dim, near.rows, near.row_size, buffer.keys, query, dots);
    Scores<M>(D, near.duals, D + kRowPad, buffer.values, query, products);
    const auto seen = [&](int m, int n, int half, int i) {
      const int column = query + 8 * n + 2 * t + i;
      return column < count && column >= first_row + 16 * m + 8 * half + g;
    };
    uint32_t of_dots[M][4], weights[M][4];
    Fragments<M>(of_dots, [&](int m, int n, int half, int i) {
      const int column = query + 8 * n + 2 * t + i;
      const float of_weight = products[m][n][2 * half + i] + scalars[column];
      const float of_dot = NearSlope(shape.near_power, dots[m][n][2 * half + i]) * of_weight;
      return seen(m, n, half, i) ? decay.Weight(of_dot, m, half, column) : 0.0f;
    });
    Fragments<M>(weights, [&](int m, int n, int half, int i) {
      const int column = query + 8 * n + 2 * t + i;
      const float dot = dots[m][n][2 * half + i];
      return seen(m, n, half, i)
                 ? decay.Weight(NearWeight(shape.near_power, shape.scale, dot, 0), m, half, column)
                 : 0.0f;
    });
    AddProduct<8 * N, M>(of_dots, buffer.keys, dim, query, gradients);
    AddProduct<D, M>(weights, buffer.values, D, query, values);
  }
}

}  // namespace polysketch::cuda
