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
#include "kernels/cpu/dot_panels.h"
#include "kernels/cpu/row_scale.h"
// clang-format on

namespace {

struct Q8Format {
  using Sum = I;
  static const int8_t* Panel(const PackedMatrix& w, int64_t panel) { return w.panel_q8(panel); }
  static int64_t Depth(const PackedMatrix& w) { return w.depth4(); }
  // Minus what the bias of unsigned activations adds.
  PS_INLINE I Start(const PackedMatrix& w, int64_t column) {
    return IntSub(IntZero(), IntLoad(w.biases() + column));
  }
  PS_INLINE I Dot(I sum, I x, I w) { return DotBytes(sum, x, w); }
  PS_INLINE V Scale(const PackedMatrix& w, int64_t column) { return Load(w.scales() + column); }
  // The columns' biases are in the sum.
  PS_INLINE V Value(I sum, V column_scale, const WordRows& x, int64_t row) {
    return Mul(Mul(ToFloat(sum), column_scale), Set1(x.scales[row]));
  }
};

// Quantises a row whose largest magnitude is known.
void QuantizeTo(const float* x, int64_t width, const QuantScale& scale, uint8_t* out) {
  const V inverse = Set1(scale.inverse);
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) StoreBiasedBytes(Mul(Load(x + i), inverse), out + i);
  // Bytes behind the width meet weights of zero; those behind this vector may be anything.
  if (i < width) {
    const Mask tail = FirstN(static_cast<int>(width - i));
    StoreBiasedBytes(Mul(LoadMasked(x + i, tail), inverse), out + i);
  }
}

void QuantizeRow(const float* x, int64_t width, uint8_t* out, float* scale_out) {
  const QuantScale scale = RowScale(x, width);
  QuantizeTo(x, width, scale, out);
  *scale_out = scale.scale;
}

// The same of gelu(x); x [whole vectors] is overwritten.
void GeluQuantizeRow(float* x, int64_t width, uint8_t* out, float* scale_out) {
  I largest = IntZero();
  for (int64_t i = 0; i < width; i += kLanes) {
    const V y = Gelu(Load(x + i));
    largest = MaxMagnitude(largest, y);
    Store(y, x + i);
  }
  const QuantScale scale = QuantScale::Of(ReduceMagnitude(largest));
  QuantizeTo(x, width, scale, out);
  *scale_out = scale.scale;
}

// Below this many rows a tile would be mostly empty, and the weights' bytes are what costs. The
// sums are exact: either way gives the same bits.
bool UseTiles(TileUnit tiles, int64_t rows) { return tiles != TileUnit::kNone && rows >= 16; }

// A panel for all rows by tiles.
void PanelTiles(const TileSession& session, const WordRows& x, int64_t rows, const PackedMatrix& w,
                int64_t panel, const Epilogue& e) {
  static_assert(kTileBlock == kPanelColumns);
  alignas(64) int32_t sums[kTileBlock][kTileBlock];
  for (int64_t row = 0; row < rows; row += kTileBlock) {
    session.Product(x.bytes + row * x.row_size, x.row_size, w.panel_q8(panel), w.depth4(), sums);
    const int count = static_cast<int>(std::min<int64_t>(kTileBlock, rows - row));
    for (int m = 0; m < count; ++m) {
      for (int n = 0; n < kTileBlock; n += kLanes) {
        const int64_t column = panel * kPanelColumns + n;
        const I sum = IntSub(IntLoad(&sums[m][n]), IntLoad(w.biases() + column));
        Finish(e, row + m, column, Q8Format::Value(sum, Q8Format::Scale(w, column), x, row + m));
      }
    }
  }
}

// Where `rows` rows of a matrix's input are quantised to: whole blocks of rows and of bytes, which
// tiles read; what they read too much of does not reach a result.
WordRows RowsIn(uint8_t* memory, int64_t rows, const PackedMatrix& w) {
  const int64_t row_size = (w.in() + kTileRowBytes - 1) / kTileRowBytes * kTileRowBytes;
  const int64_t blocks = (rows + kTileBlock - 1) / kTileBlock * kTileBlock;
  return {memory + blocks * static_cast<int64_t>(sizeof(float)), row_size,
          reinterpret_cast<float*>(memory)};
}

}  // namespace

void MatMulQ8(Context& ctx, const float* x, int64_t rows, const PackedMatrix& w, const float* bias,
              bool accumulate, float* out) {
  const WordRows quantized = RowsIn(ctx.Shared(ConvertedBytes(rows, w.in())), rows, w);
  ctx.ParallelRows(rows, 1 + 16384 / w.in(), [&](int64_t first, int64_t last, int) {
    for (int64_t m = first; m < last; ++m) {
      QuantizeRow(x + m * w.in(), w.in(), quantized.bytes + m * quantized.row_size,
                  quantized.scales + m);
    }
  });
  const Epilogue e{bias, accumulate, out, w.out(), w.out()};
  if (UseTiles(ctx.units().tiles, rows)) {
    ctx.pool().ParallelFor(w.panels(), [&](int64_t panel, int) {
      PanelTiles(TileSession(ctx.units().tiles), quantized, rows, w, panel, e);
    });
    return;
  }
  DotPanels<Q8Format>(ctx, quantized, rows, w, e);
}

namespace {

void MultiplyQuantized(TileUnit tiles, const WordRows& x, int rows, const PackedMatrix& w,
                       float* out, int64_t out_row) {
  const Epilogue e{nullptr, false, out, out_row, w.panels() * kPanelColumns};
  if (UseTiles(tiles, rows)) {
    const TileSession session(tiles);
    for (int64_t panel = 0; panel < w.panels(); ++panel) {
      PanelTiles(session, x, rows, w, panel, e);
    }
    return;
  }
  DotPanelsAlone<Q8Format>(x, rows, w, e);
}

}  // namespace

void MatMulRowsQ8(TileUnit tiles, const float* x, int64_t x_row, int rows, const PackedMatrix& w,
                  uint8_t* scratch, float* out, int64_t out_row) {
  const WordRows quantized = RowsIn(scratch, rows, w);
  for (int m = 0; m < rows; ++m) {
    QuantizeRow(x + m * x_row, w.in(), quantized.bytes + m * quantized.row_size,
                quantized.scales + m);
  }
  MultiplyQuantized(tiles, quantized, rows, w, out, out_row);
}

void GeluMatMulRowsQ8(TileUnit tiles, float* x, int64_t x_row, int rows, const PackedMatrix& w,
                      uint8_t* scratch, float* out, int64_t out_row) {
  const WordRows quantized = RowsIn(scratch, rows, w);
  for (int m = 0; m < rows; ++m) {
    GeluQuantizeRow(x + m * x_row, w.in(), quantized.bytes + m * quantized.row_size,
                    quantized.scales + m);
  }
  MultiplyQuantized(tiles, quantized, rows, w, out, out_row);
}

#include "kernels/cpu/isa_end.h"
