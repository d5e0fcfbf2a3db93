// Rows of 8-bit integers (kernels/quantize.h), the left operands of products with quantised weights, as
// they are quantised from what they are made of: floats, the norm of floats, or a gate.
#pragma once

#include <cstdint>

#include "kernels/cuda/mlp_gate.cuh"
#include "kernels/cuda/norm_row.cuh"
#include "kernels/quantize.h"

namespace polysketch::cuda {

// A kernel argument.
struct QuantRows {
  const float* x;  // [rows][stride]
  int width, padded, stride;
  bool aligned;      // x, and the norm's arrays, to 16 bytes
  NormWeights norm;  // scale null: none
  GateKind gate;
};

// What the elements of a row are: the floats, or their norm if there is one; or with kGate the gate of
// [u, g].
template <bool kGate>
__device__ __forceinline__ Quad LoadOperand(const QuantRows& rows, const float* row, int i,
                                            const RowStatistics& of_row) {
  if constexpr (!kGate) {
    if (rows.norm.scale == nullptr) return LoadQuad(row, i, rows.width, rows.aligned);
    return LoadNormed(row, i, rows.width, rows.norm, rows.aligned, of_row);
  }
  Quad u = LoadQuad(row, i, rows.width, rows.aligned);
  if (rows.gate == GateKind::kUngatedGelu) {
#pragma unroll
    for (int c = 0; c < 4; ++c) u.v[c] = Gelu(u.v[c]);
  } else {
    const Quad g = LoadQuad(row + rows.width, i, rows.width, rows.aligned);
#pragma unroll
    for (int c = 0; c < 4; ++c) u.v[c] = Gated(rows.gate, u.v[c], g.v[c]);
  }
  return u;
}

// Quantises a row into out [padded], a multiple of 4, zero from `width` on, and returns its scale to all
// threads of kWarps warps: all of a thread block, or one. scratch: kWarps floats of shared memory; of
// one warp null.
template <int kWarps, bool kGate>
__device__ __forceinline__ float QuantizeRow(const QuantRows& rows, const float* row, int8_t* out,
                                             float* scratch) {
  constexpr int kThreads = kWarps * kWarpSize;
  const int first = 4 * static_cast<int>(threadIdx.x % kThreads);
  RowStatistics of_row;
  if (!kGate && rows.norm.scale != nullptr) {
    of_row = StatisticsOf<kWarps>(row, rows.width, rows.norm, rows.aligned, scratch);
  }
  // Bits of magnitudes have the order of the magnitudes, and those of a NaN are the largest.
  uint32_t largest = 0;
#pragma unroll 2
  for (int i = first; i < rows.width; i += 4 * kThreads) {
    const Quad x = LoadOperand<kGate>(rows, row, i, of_row);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const uint32_t magnitude = i + c < rows.width ? FloatBits(x.v[c]) & 0x7fffffffu : 0;
      largest = magnitude > largest ? magnitude : largest;
    }
  }
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    const uint32_t other = __shfl_xor_sync(kFullWarp, largest, distance);
    largest = other > largest ? other : largest;
  }
  if constexpr (kWarps > 1) {
    auto* of_warps = reinterpret_cast<uint32_t*>(scratch);
    if (threadIdx.x % kWarpSize == 0) of_warps[threadIdx.x / kWarpSize] = largest;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kWarps; ++i) largest = of_warps[i] > largest ? of_warps[i] : largest;
    __syncthreads();
  }
  const float magnitude = BitsFloat(largest);
  const bool tiny = magnitude < kQuantTiny;
  const float inverse = tiny ? 0.0f : kQuantMax / magnitude;
#pragma unroll 2
  for (int i = first; i < rows.padded; i += 4 * kThreads) {
    const Quad x = LoadOperand<kGate>(rows, row, i, of_row);
    uint32_t word = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float q = i + c < rows.width ? rintf(x.v[c] * inverse) : 0.0f;
      const float kept = q == q ? fminf(fmaxf(q, -127), 127) : 0.0f;
      word |= (static_cast<uint32_t>(static_cast<int32_t>(kept)) & 0xff) << 8 * c;
    }
    *reinterpret_cast<uint32_t*>(out + i) = word;
  }
  return tiny ? 0.0f : magnitude / kQuantMax;
}

}  // namespace polysketch::cuda
