// Elements of keys and values in a KV cache: F32, F16 or int8_t (kernels/kv_rounding.h).
#pragma once

#include <cstdint>

#include "kernels/cpu/register_tile.h"
#include "kernels/cpu/simd.h"
#include "kernels/kv_rounding.h"

#include "kernels/cpu/isa_begin.inc"

struct F32 {
  float value;
};
struct F16 {
  uint16_t bits;
};

PS_INLINE V LoadElements(const F32* p) { return Load(&p->value); }
PS_INLINE V LoadElements(const F16* p) { return LoadF16(&p->bits); }
PS_INLINE V LoadElements(const int8_t* p) { return LoadSignedBytes(p); }

// B of a product as such elements. Prefetches what is `ahead` bytes after a row: the hardware's
// prefetchers stop at the end of a page, and a tile is as short as one.
template <typename Element>
struct ElementRows {
  static constexpr int kStep = 1;
  const Element* data;
  int64_t stride;
  int64_t ahead;
  template <int NV, int kPart>
  PS_INLINE void LoadRow(const ElementRows& b, int64_t k, V (&out)[NV]) {
    const Element* row = b.data + k * b.stride;
    constexpr int kBytes = NV * kLanes * static_cast<int>(sizeof(Element)), kLine = 64;
#pragma GCC unroll 4
    for (int i = 0; i < kBytes; i += kLine) {
      __builtin_prefetch(reinterpret_cast<const char*>(row) + b.ahead + i);
    }
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) out[n] = LoadElements(row + n * kLanes);
  }
  ElementRows Columns(int64_t first) const { return {data + first, stride, ahead}; }
};

// ahead: `next` continues where `end` is reached.
PS_INLINE int64_t DistanceOf(const Readahead& ahead) {
  return static_cast<const char*>(ahead.next) - static_cast<const char*>(ahead.end);
}
PS_INLINE ElementRows<F32> RowsOf(const F32* data, int64_t stride, const Readahead& ahead) {
  return {data, stride, DistanceOf(ahead)};
}
PS_INLINE ElementRows<F16> RowsOf(const F16* data, int64_t stride, const Readahead& ahead) {
  return {data, stride, DistanceOf(ahead)};
}
PS_INLINE ElementRows<int8_t> RowsOf(const int8_t* data, int64_t stride, const Readahead& ahead) {
  return {data, stride, DistanceOf(ahead)};
}

PS_INLINE void Put(float value, F32* out) { out->value = value; }
PS_INLINE void PutLanes(V lanes, F32* out) { Store(lanes, &out->value); }
PS_INLINE void Put(float value, F16* out) { out->bits = RoundToF16(value); }
PS_INLINE void PutLanes(V lanes, F16* out) {
  // Of a NaN, Min and Max return the second operand.
  StoreF16(Max(Set1(-kLargestF16), Min(Set1(kLargestF16), lanes)), &out->bits);
}

// Writes the integers of x [size] to bytes [size, a multiple of kLanes] and returns their scale.
static float QuantizeForCache(const float* x, int size, int8_t* bytes) {
  const int whole = size / kLanes * kLanes;
  const Mask tail = FirstN(size - whole);
  I largest = MaxMagnitude(IntZero(), whole < size ? LoadMasked(x + whole, tail) : Zero());
  for (int i = 0; i < whole; i += kLanes) largest = MaxMagnitude(largest, Load(x + i));
  const QuantScale scale = CacheScale(ReduceMagnitude(largest));
  const V inverse = Set1(scale.inverse);
  for (int i = 0; i < whole; i += kLanes) StoreSignedBytes(Mul(Load(x + i), inverse), bytes + i);
  if (whole < size) StoreSignedBytes(Mul(LoadMasked(x + whole, tail), inverse), bytes + whole);
  return scale.scale;
}

#include "kernels/cpu/isa_end.inc"
