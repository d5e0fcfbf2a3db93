// Products with 8-bit weights (kernels/quantize.h). Every row of activations is quantised to
// unsigned bytes (integer + 128) first; integer sums are exact, so tiles, splits and threads cannot
// change a bit, and instruction sets agree.
#include <immintrin.h>

#include <algorithm>

#include "kernels/cpu/ops.h"
#include "kernels/quantize.h"

// These build on one another, in this order.
// clang-format off
#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/row_scale.h"
// clang-format on

namespace {

// Rows of quantised activations, `row_size` bytes apart, and their scales.
struct QuantizedRows {
  uint8_t* bytes;
  int64_t row_size;
  float* scales;
};

// Quantises a row whose largest magnitude is known.
void QuantizeTo(const float* x, int64_t width, int64_t row_size, const QuantScale& scale,
                uint8_t* out) {
  const V inverse = Set1(scale.inverse);
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) StoreBiasedBytes(Mul(Load(x + i), inverse), out + i);
  // Bytes behind the width meet weights of zero.
  if (i < row_size) {
    const Mask tail = FirstN(static_cast<int>(width - i));
    StoreBiasedBytes(Mul(LoadMasked(x + i, tail), inverse), out + i);
  }
}

void QuantizeRow(const float* x, int64_t width, int64_t row_size, uint8_t* out, float* scale_out) {
  const QuantScale scale = RowScale(x, width);
  QuantizeTo(x, width, row_size, scale, out);
  *scale_out = scale.scale;
}

// The same of gelu(x); x [whole vectors up to row_size] is overwritten.
void GeluQuantizeRow(float* x, int64_t width, int64_t row_size, uint8_t* out, float* scale_out) {
  I largest = IntZero();
  for (int64_t i = 0; i < width; i += kLanes) {
    const V y = Gelu(Load(x + i));
    largest = MaxMagnitude(largest, y);
    Store(y, x + i);
  }
  const QuantScale scale = QuantScale::Of(ReduceMagnitude(largest));
  QuantizeTo(x, width, row_size, scale, out);
  *scale_out = scale.scale;
}

// acc[m][n] += bytes of row m times words of column vector n, over all of a panel's rows.
template <int MR, int NV>
PS_INLINE void DotTile(const uint8_t* x, int64_t x_row, const int8_t* w, int64_t depth4,
                       I (&acc)[MR][NV]) {
  for (int64_t k = 0; k < depth4; ++k) {
    I words[NV];
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) words[n] = IntLoad(w + (k * kPanelColumns + n * kLanes) * 4);
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
      const I bytes = BroadcastBytes(x + m * x_row + k * 4);
#pragma GCC unroll 2
      for (int n = 0; n < NV; ++n) acc[m][n] = DotBytes(acc[m][n], bytes, words[n]);
    }
  }
}

// (sum - bias) * column scale * row scale.
PS_INLINE V Dequantize(const PackedMatrix& w, int64_t column, float row_scale, I acc) {
  const V sum = ToFloat(IntSub(acc, IntLoad(w.biases() + column)));
  return Mul(Mul(sum, Load(w.scales() + column)), Set1(row_scale));
}

template <int MR, int NV>
void TileQ8(const QuantizedRows& x, int64_t row, const PackedMatrix& w, int64_t panel,
            int first_vector, const Epilogue& e) {
  I acc[MR][NV];
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) acc[m][n] = IntZero();
  }
  DotTile<MR, NV>(x.bytes + row * x.row_size, x.row_size,
                  w.panel_q8(panel) + first_vector * kLanes * 4, w.depth4(), acc);
  const int64_t column = panel * kPanelColumns + first_vector * kLanes;
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) {
      Finish(e, row + m, column + n * kLanes,
             Dequantize(w, column + n * kLanes, x.scales[row + m], acc[m][n]));
    }
  }
}

template <int MR, int NV>
void RemainderQ8(int rows, const QuantizedRows& x, int64_t row, const PackedMatrix& w,
                 int64_t panel, int first_vector, const Epilogue& e) {
  if constexpr (MR > 0) {
    if (rows == MR) {
      TileQ8<MR, NV>(x, row, w, panel, first_vector, e);
    } else {
      RemainderQ8<MR - 1, NV>(rows, x, row, w, panel, first_vector, e);
    }
  }
}

void PanelQ8(const QuantizedRows& x, int64_t rows, const PackedMatrix& w, int64_t panel,
             const Epilogue& e) {
  constexpr int NV = kPanelVectors;
  constexpr int kFull = kTileRows<NV>;
  for (int vector = 0; vector < 2; vector += NV) {
    int64_t row = 0;
    for (; row + kFull <= rows; row += kFull) TileQ8<kFull, NV>(x, row, w, panel, vector, e);
    RemainderQ8<kFull - 1, NV>(static_cast<int>(rows - row), x, row, w, panel, vector, e);
  }
}

// One row against kSingleRowPanels panels side by side.
void SingleRowQ8(const QuantizedRows& x, const PackedMatrix& w, int64_t panel, const Epilogue& e) {
  I acc[kSingleRowPanels][2];
#pragma GCC unroll 4
  for (auto& pair : acc) pair[0] = pair[1] = IntZero();
  const int64_t depth4 = w.depth4(), panel_size = depth4 * kPanelColumns * 4;
  const int8_t* first = w.panel_q8(panel);
  for (int64_t k = 0; k < depth4; ++k) {
    const I bytes = BroadcastBytes(x.bytes + k * 4);
#pragma GCC unroll 4
    for (int p = 0; p < kSingleRowPanels; ++p) {
      const int8_t* words = first + p * panel_size + k * kPanelColumns * 4;
      acc[p][0] = DotBytes(acc[p][0], bytes, IntLoad(words));
      acc[p][1] = DotBytes(acc[p][1], bytes, IntLoad(words + kLanes * 4));
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < kSingleRowPanels; ++p) {
    const int64_t column = (panel + p) * kPanelColumns;
    Finish(e, 0, column, Dequantize(w, column, x.scales[0], acc[p][0]));
    Finish(e, 0, column + kLanes, Dequantize(w, column + kLanes, x.scales[0], acc[p][1]));
  }
}

}  // namespace

void MatMulQ8(Context& ctx, const float* x, int64_t rows, const PackedMatrix& w, const float* bias,
              bool accumulate, float* out) {
  // Whole vectors of bytes, so that rows may be written past their width.
  const int64_t row_size = (w.in() + kLanes - 1) / kLanes * kLanes;
  uint8_t* memory = ctx.Shared(rows * (row_size + static_cast<int64_t>(sizeof(float))));
  const QuantizedRows quantized{memory + rows * sizeof(float), row_size,
                                reinterpret_cast<float*>(memory)};
  ctx.ParallelRows(rows, 1 + 16384 / w.in(), [&](int64_t first, int64_t last, int) {
    for (int64_t m = first; m < last; ++m) {
      QuantizeRow(x + m * w.in(), w.in(), row_size, quantized.bytes + m * row_size,
                  quantized.scales + m);
    }
  });
  const Epilogue e{bias, accumulate, out, w.out(), w.out()};
  const int64_t group = rows <= kTileRows<kPanelVectors> ? kSingleRowPanels : 1;
  ctx.pool().ParallelFor((w.panels() + group - 1) / group, [&](int64_t task, int) {
    const int64_t first = task * group;
    const int64_t last = std::min(first + group, w.panels());
    if (rows == 1 && last - first == kSingleRowPanels) {
      SingleRowQ8(quantized, w, first, e);
      return;
    }
    for (int64_t panel = first; panel < last; ++panel) PanelQ8(quantized, rows, w, panel, e);
  });
}

namespace {

// Where `rows` rows of a matrix's input are quantised to.
QuantizedRows RowsIn(uint8_t* scratch, int rows, const PackedMatrix& w) {
  const int64_t row_size = (w.in() + kLanes - 1) / kLanes * kLanes;
  return {scratch + rows * sizeof(float), row_size, reinterpret_cast<float*>(scratch)};
}

void MultiplyQuantized(const QuantizedRows& x, int rows, const PackedMatrix& w, float* out,
                       int64_t out_row) {
  const Epilogue e{nullptr, false, out, out_row, w.panels() * kPanelColumns};
  for (int64_t panel = 0; panel < w.panels(); ++panel) PanelQ8(x, rows, w, panel, e);
}

}  // namespace

void MatMulRowsQ8(const float* x, int64_t x_row, int rows, const PackedMatrix& w, uint8_t* scratch,
                  float* out, int64_t out_row) {
  const QuantizedRows quantized = RowsIn(scratch, rows, w);
  for (int m = 0; m < rows; ++m) {
    QuantizeRow(x + m * x_row, w.in(), quantized.row_size, quantized.bytes + m * quantized.row_size,
                quantized.scales + m);
  }
  MultiplyQuantized(quantized, rows, w, out, out_row);
}

void GeluMatMulRowsQ8(float* x, int64_t x_row, int rows, const PackedMatrix& w, uint8_t* scratch,
                      float* out, int64_t out_row) {
  const QuantizedRows quantized = RowsIn(scratch, rows, w);
  for (int m = 0; m < rows; ++m) {
    GeluQuantizeRow(x + m * x_row, w.in(), quantized.row_size,
                    quantized.bytes + m * quantized.row_size, quantized.scales + m);
  }
  MultiplyQuantized(quantized, rows, w, out, out_row);
}

#include "kernels/cpu/isa_end.h"
