// The norm of a row, for every kernel that computes one: the bits of a row are those of these
// functions. Lane l of the lanes of a row has elements 4 (l + lanes q) + c, c < 4, of each q. A sum over
// a row of more than 1,024 elements is that of its pieces of 1,024, added in order.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/cuda/ptx.cuh"
#include "kernels/matrix.h"

namespace polysketch::cuda {

struct Quad {
  float v[4];
};

// Whether rows of `width` floats at these addresses can be read four floats at a time.
inline bool AlignedQuads(int64_t width, std::initializer_list<const void*> arrays) {
  bool aligned = width % 4 == 0;
  for (const void* array : arrays) aligned &= reinterpret_cast<uintptr_t>(array) % 16 == 0;
  return aligned;
}

// Elements i to i + 3 of a row, zero from `width` on.
__device__ __forceinline__ Quad LoadQuad(const float* row, int i, int width, bool aligned) {
  Quad quad = {};
  if (aligned) {
    if (i < width) {
      const float4 values = *reinterpret_cast<const float4*>(row + i);
      quad = {values.x, values.y, values.z, values.w};
    }
  } else {
    for (int c = 0; c < 4; ++c) {
      if (i + c < width) quad.v[c] = row[i + c];
    }
  }
  return quad;
}

__device__ __forceinline__ void StoreQuad(const Quad& quad, int i, int width, bool aligned,
                                          float* row) {
  if (aligned) {
    if (i < width) {
      *reinterpret_cast<float4*>(row + i) = make_float4(quad.v[0], quad.v[1], quad.v[2], quad.v[3]);
    }
  } else {
    for (int c = 0; c < 4; ++c) {
      if (i + c < width) row[i + c] = quad.v[c];
    }
  }
}

// Rounds a quad to 16 bits; zeros from element `count` on.
template <bool kBf16>
__device__ __forceinline__ void StoreHalves(const Quad& quad, int count, uint16_t* out) {
  const auto value = [&](int c) { return c < count ? quad.v[c] : 0.0f; };
  *reinterpret_cast<uint2*>(out) =
      make_uint2(PackHalf<kBf16>(value(0), value(1)), PackHalf<kBf16>(value(2), value(3)));
}

// The sum over groups of kLanes neighbouring lanes, in a fixed tree.
template <int kLanes>
__device__ __forceinline__ float GroupSum(float value) {
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, distance);
  }
  return value;
}

__device__ __forceinline__ float InverseDeviation(float squares, int width, float epsilon) {
  return 1.0f / sqrtf(squares / static_cast<float>(width) + epsilon);
}

// x = (x - mean) / deviation * scale + bias; of kRms without mean and bias. A row has kLanes lanes of
// kQuads quads each; elements from `width` on are zero before and undefined after. All lanes of the
// warp call it.
template <int kLanes, int kQuads>
__device__ __forceinline__ void NormQuads(int width, const NormWeights& norm, bool aligned,
                                          Quad (&x)[kQuads]) {
  const bool centres = norm.kind == NormKind::kLayer;
  const int first = 4 * static_cast<int>(threadIdx.x % kLanes);
  Quad scales[kQuads], biases[kQuads] = {};
  float sum = 0;
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    scales[q] = LoadQuad(norm.scale, first + 4 * kLanes * q, width, aligned);
    if (centres) biases[q] = LoadQuad(norm.bias, first + 4 * kLanes * q, width, aligned);
    for (int c = 0; c < 4; ++c) sum += x[q].v[c];
  }
  const float mean = centres ? GroupSum<kLanes>(sum) / static_cast<float>(width) : 0.0f;
  float squares = 0;
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    for (int c = 0; c < 4; ++c) {
      const float centred = x[q].v[c] - mean;
      if (first + 4 * kLanes * q + c < width) squares = fmaf(centred, centred, squares);
    }
  }
  const float inverse = InverseDeviation(GroupSum<kLanes>(squares), width, norm.epsilon);
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    for (int c = 0; c < 4; ++c) {
      x[q].v[c] = fmaf((x[q].v[c] - mean) * inverse, scales[q].v[c], biases[q].v[c]);
    }
  }
}

// How a row of a width is divided among lanes.
constexpr int kNarrowNorm = 64;      // at most: 16 lanes, one quad each
constexpr int kHeadNorm = 128;       // at most: a warp, one quad a lane
constexpr int kRegisterNorm = 1024;  // at most: a warp, 8 quads a lane; wider rows are read thrice
constexpr int kRowQuads = kRegisterNorm / 4 / kWarpSize;

// What a norm subtracts from the elements of a row, and what it multiplies them by.
struct RowStatistics {
  float mean = 0, inverse = 0;
};

// The sum over a piece of kRegisterNorm elements of a row, from `first` on, for all lanes of a warp: of
// x, or of the squares of x - mean. Lanes and quads beyond a narrow row add zeros to the sums, which
// change no bit.
template <bool kSquares>
__device__ __forceinline__ float PieceSum(const float* row, int first, int width, bool aligned,
                                          float mean) {
  first += 4 * static_cast<int>(threadIdx.x % kWarpSize);
  Quad values[kRowQuads];
#pragma unroll
  for (int q = 0; q < kRowQuads; ++q) {
    values[q] = LoadQuad(row, first + 4 * kWarpSize * q, width, aligned);
  }
  float sum = 0;
#pragma unroll
  for (int q = 0; q < kRowQuads; ++q) {
    for (int c = 0; c < 4; ++c) {
      const float centred = values[q].v[c] - mean;
      if constexpr (!kSquares) {
        sum += values[q].v[c];
      } else if (first + 4 * kWarpSize * q + c < width) {
        sum = fmaf(centred, centred, sum);
      }
    }
  }
  return GroupSum<kWarpSize>(sum);
}

// PieceSum over all pieces of a row, which kWarps warps divide: all of a thread block, or one. scratch:
// kWarps floats of shared memory; of one warp null.
template <int kWarps, bool kSquares>
__device__ __forceinline__ float RowSum(const float* row, int width, bool aligned, float mean,
                                        float* scratch) {
  const int warp = kWarps == 1 ? 0 : static_cast<int>(threadIdx.x) / kWarpSize;
  float total = 0;
  for (int start = 0; start < width; start += kWarps * kRegisterNorm) {
    const int first = start + warp * kRegisterNorm;
    const float sum = first < width ? PieceSum<kSquares>(row, first, width, aligned, mean) : 0.0f;
    if constexpr (kWarps == 1) {
      total += sum;
    } else {
      if (threadIdx.x % kWarpSize == 0) scratch[warp] = sum;
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kWarps; ++i) {
        if (start + i * kRegisterNorm < width) total += scratch[i];
      }
      __syncthreads();
    }
  }
  return total;
}

// As RowSum. All threads get the result.
template <int kWarps>
__device__ __forceinline__ RowStatistics StatisticsOf(const float* row, int width,
                                                      const NormWeights& norm, bool aligned,
                                                      float* scratch) {
  RowStatistics of_row;
  if (norm.kind == NormKind::kLayer) {
    of_row.mean =
        RowSum<kWarps, false>(row, width, aligned, 0, scratch) / static_cast<float>(width);
  }
  const float squares = RowSum<kWarps, true>(row, width, aligned, of_row.mean, scratch);
  of_row.inverse = InverseDeviation(squares, width, norm.epsilon);
  return of_row;
}

// Elements i to i + 3 of the norm of a row; undefined from `width` on.
__device__ __forceinline__ Quad LoadNormed(const float* row, int i, int width,
                                           const NormWeights& norm, bool aligned,
                                           const RowStatistics& of_row) {
  Quad x = LoadQuad(row, i, width, aligned);
  const Quad scales = LoadQuad(norm.scale, i, width, aligned);
  Quad biases = {};
  if (norm.kind == NormKind::kLayer) biases = LoadQuad(norm.bias, i, width, aligned);
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    x.v[c] = fmaf((x.v[c] - of_row.mean) * of_row.inverse, scales.v[c], biases.v[c]);
  }
  return x;
}

// The norm of a row, rounded to 16 bits, by kWarps warps as RowSum.
// out: [padded], a multiple of 4, aligned to 8 bytes; zero from `width` on.
template <int kWarps, bool kBf16>
__device__ __forceinline__ void LongNormToHalves(const float* row, int width,
                                                 const NormWeights& norm, bool aligned, int padded,
                                                 uint16_t* out, float* scratch) {
  const RowStatistics of_row = StatisticsOf<kWarps>(row, width, norm, aligned, scratch);
  constexpr int kThreads = kWarps * kWarpSize;
  for (int i = 4 * static_cast<int>(threadIdx.x % kThreads); i < padded; i += 4 * kThreads) {
    StoreHalves<kBf16>(LoadNormed(row, i, width, norm, aligned, of_row), width - i, out + i);
  }
}

// LongNormToHalves of a row of at most kRegisterNorm elements, by one warp.
template <bool kBf16>
__device__ __forceinline__ void NormRowToHalves(const float* row, int width,
                                                const NormWeights& norm, bool aligned, int padded,
                                                uint16_t* out) {
  const int first = 4 * static_cast<int>(threadIdx.x % kWarpSize);
  Quad values[kRowQuads];
#pragma unroll
  for (int q = 0; q < kRowQuads; ++q) {
    values[q] = LoadQuad(row, first + 4 * kWarpSize * q, width, aligned);
  }
  NormQuads<kWarpSize>(width, norm, aligned, values);
#pragma unroll
  for (int q = 0; q < kRowQuads; ++q) {
    const int i = first + 4 * kWarpSize * q;
    if (i < padded) StoreHalves<kBf16>(values[q], width - i, out + i);
  }
}

}  // namespace polysketch::cuda
