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

// A tile of a cache as operand B. A product reads a few columns at a time, from the first row to the
// last, and prefetches the next tile meanwhile: in the order of its addresses, which memory answers
// up to twice as fast as the order of the columns.
template <typename Element>
struct ElementRows {
  static constexpr int kStep = 1;
  const Element* data;
  int64_t stride;
  int64_t rows;
  const char* next;  // what the first row prefetches
  template <int NV, int kPart>
  PS_INLINE void LoadRow(const ElementRows& b, int64_t k, V (&out)[NV]) {
    constexpr int kBytes = NV * kLanes * static_cast<int>(sizeof(Element)), kLine = 64;
    const Element* row = b.data + k * b.stride;
#pragma GCC unroll 4
    for (int i = 0; i < kBytes; i += kLine) __builtin_prefetch(b.next + k * kBytes + i);
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) out[n] = LoadElements(row + n * kLanes);
  }
  ElementRows Columns(int64_t first) const {
    const auto bytes = static_cast<int64_t>(sizeof(Element)) * first * rows;
    return {data + first, stride, rows, next + bytes};
  }
};

template <typename Element>
PS_INLINE ElementRows<Element> RowsOf(const Element* data, int64_t stride, int64_t rows,
                                      const Readahead& ahead) {
  return {data, stride, rows, static_cast<const char*>(ahead.next)};
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
