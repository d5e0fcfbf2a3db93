// What products of packed panels share: rows in register tiles, and the epilogue.
#pragma once

#include <cstdint>

#include "kernels/cpu/product.h"
#include "kernels/cpu/simd.h"

#include "kernels/cpu/isa_begin.inc"

// Calls tile.operator()<MR>(row) for tiles of rows [row, row + MR) of a range: full tiles first,
// then one tile of exactly the rows that are left, so that a product of few rows reads a panel
// once.
template <int MR, typename Tile>
void RemainingRows(int64_t rows, int64_t row, const Tile& tile) {
  if constexpr (MR > 0) {
    if (rows == MR) {
      tile.template operator()<MR>(row);
    } else {
      RemainingRows<MR - 1>(rows, row, tile);
    }
  }
}
template <int kFull, typename Tile>
void ForRowTiles(const Range& rows, const Tile& tile) {
  int64_t row = rows.first;
  for (; row + kFull <= rows.last; row += kFull) tile.template operator()<kFull>(row);
  RemainingRows<kFull - 1>(rows.last - row, row, tile);
}

// Stores a vector of finished sums at [row, column]; columns from e.columns on are dropped.
PS_INLINE void Finish(const Epilogue& e, int64_t row, int64_t column, V value) {
  const int64_t left = e.columns - column;
  if (left <= 0) return;
  float* out = e.out + row * e.out_row + column;
  if (left >= kLanes) {
    if (e.bias != nullptr) value = Add(value, Load(e.bias + column));
    if (e.accumulate) value = Add(value, Load(out));
    Store(value, out);
    return;
  }
  const Mask mask = FirstN(static_cast<int>(left));
  if (e.bias != nullptr) value = Add(value, LoadMasked(e.bias + column, mask));
  if (e.accumulate) value = Add(value, LoadMasked(out, mask));
  StoreMasked(value, out, mask);
}

#include "kernels/cpu/isa_end.inc"
