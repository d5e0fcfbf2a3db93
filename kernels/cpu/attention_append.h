// Stores the keys and values of new tokens in a block.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/half.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/state.h"

#include "kernels/cpu/isa_begin.inc"

PS_INLINE void Put(float value, float* out) { *out = value; }
PS_INLINE void Put(float value, uint16_t* out) { *out = FloatToBf16(value); }
PS_INLINE void PutLanes(V lanes, float* out) { Store(lanes, out); }
PS_INLINE void PutLanes(V lanes, uint16_t* out) { StoreBf16(lanes, out); }

// Stores x [dim] as a row of the block's values.
template <typename Value>
static void StoreRow(const float* x, int dim, Value* out) {
  int i = 0;
  for (; i + kLanes <= dim; i += kLanes) PutLanes(Load(x + i), out + i);
  for (; i < dim; ++i) Put(x[i], out + i);
}

// Stores sixteen tokens x [16][dim] as columns of a panel.
template <typename Key>
static void StoreSixteenColumns(const float* x, int64_t x_row, int dim, Key* column) {
  int i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    V lanes[kLanes];
#pragma GCC unroll 16
    for (int t = 0; t < kLanes; ++t) lanes[t] = Load(x + t * x_row + i);
    Transpose(lanes);
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; ++j) PutLanes(lanes[j], column + (i + j) * kKeyPanel);
  }
  for (; i < dim; ++i) {
    for (int t = 0; t < kLanes; ++t) Put(x[t * x_row + i], column + i * kKeyPanel + t);
  }
}

// Stores rows [0, count) of x as columns offset, offset + 1, ... of transposed keys (state.h), up
// to sixteen tokens at a time: a row of keys is written one cache line at a time while the sixteen
// lines of x stay in L1.
template <typename Key>
static void AppendKeys(const float* x, int64_t x_row, int64_t count, int dim, int64_t offset,
                       Key* keys) {
  for (int64_t first = 0; first < count;) {
    const int64_t token = offset + first;
    const int64_t run = std::min<int64_t>(kLanes - token % kLanes, count - first);
    Key* column = keys + KeyIndex(dim, 0, token);
    if (run == kLanes) {
      StoreSixteenColumns(x + first * x_row, x_row, dim, column);
    } else {
      for (int i = 0; i < dim; ++i) {
        for (int64_t t = 0; t < run; ++t) {
          Put(x[(first + t) * x_row + i], column + i * kKeyPanel + t);
        }
      }
    }
    first += run;
  }
}

#include "kernels/cpu/isa_end.inc"
