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

// acc[m][n] += bytes of row m times words of column vector n, over all of a panel's rows. Asks for
// as many cache lines at `ahead`, weights of a later panel: a tile computes for longer than the
// hardware's prefetchers look ahead, and would wait for each panel's first bytes.
template <int MR, int NV>
PS_INLINE void DotTile(const uint8_t* x, int64_t x_row, const int8_t* w, int64_t depth4,
                       const int8_t* ahead, I (&acc)[MR][NV]) {
  for (int64_t k = 0; k < depth4; ++k) {
    _mm_prefetch(reinterpret_cast<const char*>(ahead + k * 64), _MM_HINT_T1);
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

// sum * column scale * row scale; the columns' biases are in the sum.
PS_INLINE V Dequantize(I sum, V column_scale, float row_scale) {
  return Mul(Mul(ToFloat(sum), column_scale), Set1(row_scale));
}

// What sixteen columns' sums start from: minus what the bias of unsigned activations adds.
PS_INLINE I StartOf(const PackedMatrix& w, int64_t column) {
  return IntSub(IntZero(), IntLoad(w.biases() + column));
}

// A panel, and the one that this thread is expected to take next.
struct PanelPair {
  int64_t panel, next;
};

template <int MR, int NV>
void TileQ8(const QuantizedRows& x, int64_t row, const PackedMatrix& w, PanelPair panels,
            int first_vector, const Epilogue& e) {
  const int64_t column = panels.panel * kPanelColumns + first_vector * kLanes;
  I acc[MR][NV];
#pragma GCC unroll 2
  for (int n = 0; n < NV; ++n) {
    const I start = StartOf(w, column + n * kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) acc[m][n] = start;
  }
  // A panel has two lines a row: the first tile asks for one half of the next, any other for the
  // second half.
  const int8_t* ahead = w.panel_q8(panels.next) + (row == 0 ? 0 : w.depth4() * 64);
  DotTile<MR, NV>(x.bytes + row * x.row_size, x.row_size,
                  w.panel_q8(panels.panel) + first_vector * kLanes * 4, w.depth4(), ahead, acc);
  V scales[NV];
#pragma GCC unroll 2
  for (int n = 0; n < NV; ++n) scales[n] = Load(w.scales() + column + n * kLanes);
  if (e.bias == nullptr && !e.accumulate && e.columns - column >= NV * kLanes) {
    // Finish without its questions, which cost as much as a short product.
    float* out = e.out + row * e.out_row + column;
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 2
      for (int n = 0; n < NV; ++n) {
        Store(Dequantize(acc[m][n], scales[n], x.scales[row + m]),
              out + m * e.out_row + n * kLanes);
      }
    }
    return;
  }
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) {
      Finish(e, row + m, column + n * kLanes, Dequantize(acc[m][n], scales[n], x.scales[row + m]));
    }
  }
}

template <int MR, int NV>
void RemainderQ8(int rows, const QuantizedRows& x, int64_t row, const PackedMatrix& w,
                 PanelPair panels, int first_vector, const Epilogue& e) {
  if constexpr (MR > 0) {
    if (rows == MR) {
      TileQ8<MR, NV>(x, row, w, panels, first_vector, e);
    } else {
      RemainderQ8<MR - 1, NV>(rows, x, row, w, panels, first_vector, e);
    }
  }
}

void PanelQ8(const QuantizedRows& x, int64_t rows, const PackedMatrix& w, PanelPair panels,
             const Epilogue& e) {
  constexpr int NV = kPanelVectors;
  constexpr int kFull = kTileRows<NV>;
  for (int vector = 0; vector < 2; vector += NV) {
    int64_t row = 0;
    for (; row + kFull <= rows; row += kFull) TileQ8<kFull, NV>(x, row, w, panels, vector, e);
    RemainderQ8<kFull - 1, NV>(static_cast<int>(rows - row), x, row, w, panels, vector, e);
  }
}

// Below this many rows a tile would be mostly empty, and the weights' bytes are what costs. The
// sums are exact: either way gives the same bits.
bool UseTiles(TileUnit tiles, int64_t rows) { return tiles != TileUnit::kNone && rows >= 16; }

// A panel for all rows by tiles.
void PanelTiles(const TileSession& session, const QuantizedRows& x, int64_t rows,
                const PackedMatrix& w, int64_t panel, const Epilogue& e) {
  static_assert(kTileBlock == kPanelColumns);
  alignas(64) int32_t sums[kTileBlock][kTileBlock];
  for (int64_t row = 0; row < rows; row += kTileBlock) {
    session.Product(x.bytes + row * x.row_size, x.row_size, w.panel_q8(panel), w.depth4(), sums);
    const int count = static_cast<int>(std::min<int64_t>(kTileBlock, rows - row));
    for (int m = 0; m < count; ++m) {
      for (int n = 0; n < kTileBlock; n += kLanes) {
        const int64_t column = panel * kPanelColumns + n;
        const I sum = IntSub(IntLoad(&sums[m][n]), IntLoad(w.biases() + column));
        Finish(e, row + m, column, Dequantize(sum, Load(w.scales() + column), x.scales[row + m]));
      }
    }
  }
}

// Where `rows` rows of a matrix's input are quantised to: whole blocks of rows and of bytes, which
// tiles read; what they read too much of does not reach a result.
QuantizedRows RowsIn(uint8_t* memory, int64_t rows, const PackedMatrix& w) {
  const int64_t row_size = (w.in() + kTileRowBytes - 1) / kTileRowBytes * kTileRowBytes;
  const int64_t blocks = (rows + kTileBlock - 1) / kTileBlock * kTileBlock;
  return {memory + blocks * static_cast<int64_t>(sizeof(float)), row_size,
          reinterpret_cast<float*>(memory)};
}

// One row against kSingleRowPanels panels side by side.
void SingleRowQ8(const QuantizedRows& x, const PackedMatrix& w, int64_t panel, const Epilogue& e) {
  I acc[kSingleRowPanels][2];
#pragma GCC unroll 4
  for (int p = 0; p < kSingleRowPanels; ++p) {
    acc[p][0] = StartOf(w, (panel + p) * kPanelColumns);
    acc[p][1] = StartOf(w, (panel + p) * kPanelColumns + kLanes);
  }
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
    Finish(e, 0, column, Dequantize(acc[p][0], Load(w.scales() + column), x.scales[0]));
    Finish(e, 0, column + kLanes,
           Dequantize(acc[p][1], Load(w.scales() + column + kLanes), x.scales[0]));
  }
}

}  // namespace

void MatMulQ8(Context& ctx, const float* x, int64_t rows, const PackedMatrix& w, const float* bias,
              bool accumulate, float* out) {
  const QuantizedRows quantized = RowsIn(ctx.Shared(QuantizedBytes(rows, w.in())), rows, w);
  ctx.ParallelRows(rows, 1 + 16384 / w.in(), [&](int64_t first, int64_t last, int) {
    for (int64_t m = first; m < last; ++m) {
      QuantizeRow(x + m * w.in(), w.in(), quantized.bytes + m * quantized.row_size,
                  quantized.scales + m);
    }
  });
  const Epilogue e{bias, accumulate, out, w.out(), w.out()};
  // A task's panels lie in a row, so that the next one is known. A row or a few want
  // kSingleRowPanels of them side by side; more rows so many tasks that threads end together.
  const bool few = rows <= kTileRows<kPanelVectors>;
  const int64_t wanted = few ? kSingleRowPanels : w.panels() / (4 * ctx.threads());
  const int64_t group = std::clamp<int64_t>(wanted, 1, kSingleRowPanels);
  if (UseTiles(ctx.tiles(), rows)) {
    ctx.pool().ParallelFor(w.panels(), [&](int64_t panel, int) {
      PanelTiles(TileSession(ctx.tiles()), quantized, rows, w, panel, e);
    });
    return;
  }
  ctx.pool().ParallelFor((w.panels() + group - 1) / group, [&](int64_t task, int) {
    const int64_t first = task * group;
    const int64_t last = std::min(first + group, w.panels());
    if (rows == 1 && last - first == kSingleRowPanels) {
      SingleRowQ8(quantized, w, first, e);
      return;
    }
    for (int64_t panel = first; panel < last; ++panel) {
      // Behind a task's last panel the other threads' tasks come first, most likely.
      const int64_t next = panel + 1 < last ? panel + 1 : last + group * (ctx.threads() - 1);
      PanelQ8(quantized, rows, w, {panel, std::min(next, w.panels() - 1)}, e);
    }
  });
}

namespace {

void MultiplyQuantized(TileUnit tiles, const QuantizedRows& x, int rows, const PackedMatrix& w,
                       float* out, int64_t out_row) {
  const Epilogue e{nullptr, false, out, out_row, w.panels() * kPanelColumns};
  if (UseTiles(tiles, rows)) {
    const TileSession session(tiles);
    for (int64_t panel = 0; panel < w.panels(); ++panel) {
      PanelTiles(session, x, rows, w, panel, e);
    }
    return;
  }
  for (int64_t panel = 0; panel < w.panels(); ++panel) {
    PanelQ8(x, rows, w, {panel, std::min(panel + 1, w.panels() - 1)}, e);
  }
}

}  // namespace

void MatMulRowsQ8(TileUnit tiles, const float* x, int64_t x_row, int rows, const PackedMatrix& w,
                  uint8_t* scratch, float* out, int64_t out_row) {
  const QuantizedRows quantized = RowsIn(scratch, rows, w);
  for (int m = 0; m < rows; ++m) {
    QuantizeRow(x + m * x_row, w.in(), quantized.bytes + m * quantized.row_size,
                quantized.scales + m);
  }
  MultiplyQuantized(tiles, quantized, rows, w, out, out_row);
}

void GeluMatMulRowsQ8(TileUnit tiles, float* x, int64_t x_row, int rows, const PackedMatrix& w,
                      uint8_t* scratch, float* out, int64_t out_row) {
  const QuantizedRows quantized = RowsIn(scratch, rows, w);
  for (int m = 0; m < rows; ++m) {
    GeluQuantizeRow(x + m * x_row, w.in(), quantized.bytes + m * quantized.row_size,
                    quantized.scales + m);
  }
  MultiplyQuantized(tiles, quantized, rows, w, out, out_row);
}

#include "kernels/cpu/isa_end.h"
