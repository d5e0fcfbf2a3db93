// What StateFormat::kQ8 reads of a state on the cpu and reference backends (on a GPU:
// kernels/cuda/mx_int8.h): copies as 8-bit integers. That of S has a scale for each row (feature) and
// one for each column,
//
//   S[f][c] ~ q[f][c] row[f] column[c]
//   column[c] = max over f of |S[f][c]|
//   y[f][c]   = S[f][c] * (1 / column[c])
//   row[f]    = max over c of |y[f][c]| / 127
//   q[f][c]   = nearest_even(y[f][c] * (127 / max over c of |y[f][c]|))
//
// The rows' scales enter a query's features and the columns' its result, so a product with the copy
// is one of integers. Every fold makes the copy anew from the float32 sums: its rounding never
// accumulates. A value of the block buffer, and a near key of mixed kinds, is quantised as a vector
// (QuantScale) from its bf16 elements. Queries of the block and its fold read the same integers of
// a value.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/quantize.h"

namespace polysketch {

// The copies multiplied out, for the reference backend; the cpu backend makes the same integers
// with vectors. S [rows, columns]:
inline std::vector<float> ByteCopy(const std::vector<float>& s, int64_t rows, int64_t columns) {
  std::vector<QuantScale> column_scales(static_cast<size_t>(columns));
  for (int64_t c = 0; c < columns; ++c) {
    column_scales[c] = QuantScale::Of(LargestMagnitude(&s[c], rows, columns), 1.0f);
  }
  std::vector<float> copy(s.size()), y(static_cast<size_t>(columns));
  for (int64_t f = 0; f < rows; ++f) {
    for (int64_t c = 0; c < columns; ++c) y[c] = s[f * columns + c] * column_scales[c].inverse;
    const QuantScale row = QuantScale::Of(LargestMagnitude(y.data(), columns, 1));
    for (int64_t c = 0; c < columns; ++c) {
      copy[f * columns + c] = Quantize(y[c], row) * row.scale * column_scales[c].scale;
    }
  }
  return copy;
}

// A key or a value x [size] of the block buffer.
inline std::vector<float> ByteVector(const float* x, int64_t size) {
  const QuantScale scale = QuantScale::Of(LargestMagnitude(x, size, 1));
  std::vector<float> copy(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) copy[i] = Quantize(x[i], scale) * scale.scale;
  return copy;
}

}  // namespace polysketch
