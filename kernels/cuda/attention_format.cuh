// The formats of states (StateFormat), as the attention kernels take them.
//
// Element        the type of keys, values and sketches in the block buffer
// kCopy          whether queries read a copy of S
// kMxCache       whether KV caches hold keys and values as 8-bit numbers (mx_int8.h)
// Cache          the format that has the same block buffers and caches
// Load, Store    read and write element e of S, of `size` elements
// StoreRead      stores an element as queries read it. Whole warps call it, for 32 neighbouring columns of a row;
//                inside: whether the element is one of S
// Read           reads what StoreRead has stored
#pragma once

#include "kernels/cuda/attention_shape.cuh"
#include "kernels/cuda/mx_int8.h"

namespace polysketch::cuda {

// An element of S [features][d].
struct StateElement {
  int64_t features;
  int d;
  int64_t row;
  int column;
  __device__ __forceinline__ int64_t at() const { return row * d + column; }
};

// Stores the number of each lane of a warp, which is a block, and the block's scale. inside: whether the lane has
// an element.
__device__ __forceinline__ void StoreMxBlock(float value, bool inside, uint8_t* number,
                                             uint8_t* scale) {
  static_assert(kMxBlock == kWarpSize);
  uint32_t magnitude = inside ? FloatBits(value) & 0x7fffffffu : 0;
#pragma unroll
  for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2) {
    magnitude = max(magnitude, __shfl_xor_sync(kFullWarp, magnitude, lanes));
  }
  const uint8_t of_block = MxScale(magnitude);
  if (inside) *number = MxNumber(value, of_block);
  if (inside && threadIdx.x % kWarpSize == 0) *scale = of_block;
}

// S as float32, which queries read.
struct PlainState {
  using Cache = PlainState;
  using Element = float;
  static constexpr bool kCopy = false, kMxCache = false;
  static __device__ float Load(const uint8_t* base, int64_t, int64_t e) {
    return reinterpret_cast<const float*>(base)[e];
  }
  static __device__ void Store(float value, uint8_t* base, int64_t, int64_t e) {
    reinterpret_cast<float*>(base)[e] = value;
  }
  static __device__ void StoreRead(float value, bool inside, uint8_t* read,
                                   const StateElement& element) {
    if (inside) reinterpret_cast<float*>(read)[element.at()] = value;
  }
  static __device__ float Read(const uint8_t* read, const StateElement& element) {
    return reinterpret_cast<const float*>(read)[element.at()];
  }
};

// S as two planes, of which queries read the upper one.
struct PlaneState {
  using Cache = PlaneState;
  using Element = Bf16;
  static constexpr bool kCopy = false, kMxCache = false;
  static __device__ float Load(const uint8_t* base, int64_t size, int64_t e) {
    const auto* planes = reinterpret_cast<const uint16_t*>(base);
    return BitsFloat(JoinPlanes(planes[e], planes[size + e]));
  }
  static __device__ void Store(float value, uint8_t* base, int64_t size, int64_t e) {
    auto* planes = reinterpret_cast<uint16_t*>(base);
    const uint32_t bits = FloatBits(value);
    planes[e] = UpperPlane(bits);
    planes[size + e] = LowerPlane(bits);
  }
  static __device__ void StoreRead(float value, bool inside, uint8_t* read,
                                   const StateElement& element) {
    if (inside) reinterpret_cast<Bf16*>(read)[element.at()] = UpperPlane(FloatBits(value));
  }
  static __device__ float Read(const uint8_t* read, const StateElement& element) {
    return WidenBf16(reinterpret_cast<const Bf16*>(read)[element.at()]);
  }
};

// S as two planes, and a copy that queries read (mx_int8.h).
struct ByteState : PlaneState {
  static constexpr bool kCopy = true;
  static __device__ void StoreRead(float value, bool inside, uint8_t* read,
                                   const StateElement& element) {
    StoreMxBlock(value, inside, read + Number(element), read + Scale(element));
  }
  static __device__ float Read(const uint8_t* read, const StateElement& element) {
    return MxValue(read[Number(element)], read[Scale(element)]);
  }

 private:
  static __device__ int64_t Number(const StateElement& element) {
    return element.row * element.d + MxPlace(element.d, element.column);
  }
  static __device__ int64_t Scale(const StateElement& element) {
    return MxScalesAt(element.features * element.d) + element.row * MxScales(element.d) +
           element.column / kMxBlock;
  }
};

// ByteState of a KV kind, whose caches hold 8-bit numbers too.
struct ByteCache : ByteState {
  using Cache = ByteCache;
  static constexpr bool kMxCache = true;
};

// Rows of keys or values in a block of a cache, as the general kernels read them.
template <typename Format>
class CachedRows {
 public:
  __device__ CachedRows(const AttentionShape& shape, const uint8_t* array, int width)
      : array_(array),
        width_(width),
        scales_(MxScalesAt(static_cast<int64_t>(shape.block) * width)) {}
  __device__ __forceinline__ float At(int64_t row, int i) const {
    if constexpr (Format::kMxCache) {
      return MxValue(array_[row * width_ + MxPlace(width_, i)],
                     array_[scales_ + row * MxScales(width_) + i / kMxBlock]);
    } else {
      return Widen(reinterpret_cast<const typename Format::Element*>(array_)[row * width_ + i]);
    }
  }

 private:
  const uint8_t* array_;
  const int width_;
  const int64_t scales_;
};

}  // namespace polysketch::cuda
