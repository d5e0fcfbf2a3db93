// Dense products. Threads divide panels of output columns; a step of few rows streams each panel
// once at memory speed, a step of many rows widens a panel to float32 in cache first and reuses it
// for every row tile.
#include <immintrin.h>

#include <algorithm>

#include "kernels/cpu/ops.h"

// These build on one another, in this order.
// clang-format off
#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/epilogue.h"
// clang-format on

namespace {

// From this many rows on a 16-bit panel is widened once instead of in every row tile. The bits are
// the same.
constexpr int kWidenRows = 25;

struct PanelF32 {
  const float* data;
  template <int NV>
  PS_INLINE void LoadRow(const PanelF32& b, int64_t k, V (&out)[NV]) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) out[n] = Load(b.data + k * kPanelColumns + n * kLanes);
  }
};
struct PanelF16 {
  const uint16_t* data;
  template <int NV>
  PS_INLINE void LoadRow(const PanelF16& b, int64_t k, V (&out)[NV]) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) out[n] = LoadF16(b.data + k * kPanelColumns + n * kLanes);
  }
};
// Half: which vector a one-vector tile takes.
template <int kHalf>
struct PanelBf16 {
  const uint32_t* data;
  template <int NV>
  PS_INLINE void LoadRow(const PanelBf16& b, int64_t k, V (&out)[NV]) {
    const uint32_t* words = b.data + k * (kPanelColumns / 2);
    if constexpr (NV == 2) {
      out[0] = LoadBf16Lower(words);
      out[1] = LoadBf16Upper(words);
    } else {
      out[0] = kHalf == 0 ? LoadBf16Lower(words) : LoadBf16Upper(words);
    }
  }
};

template <int MR, int NV, typename B>
void PanelTile(const float* x, int64_t x_row, int64_t depth, const B& b, const Epilogue& e,
               int64_t row, int64_t column) {
  V acc[MR][NV];
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) acc[m][n] = Zero();
  }
  MultiplyTile<MR, NV>(x + row * x_row, x_row, 1, depth, b, acc);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) Finish(e, row + m, column + n * kLanes, acc[m][n]);
  }
}

// The last rows of a panel, fewer than a full tile: one exact-size tile, so that a step of 2 to 11
// rows still reads the panel once.
template <int MR, int NV, typename B>
void RemainderTile(int rows, const float* x, int64_t x_row, int64_t depth, const B& b,
                   const Epilogue& e, int64_t row, int64_t column) {
  if constexpr (MR > 0) {
    if (rows == MR) {
      PanelTile<MR, NV>(x, x_row, depth, b, e, row, column);
    } else {
      RemainderTile<MR - 1, NV>(rows, x, x_row, depth, b, e, row, column);
    }
  }
}

template <int NV, typename B>
void PanelRows(const float* x, int64_t x_row, int64_t rows, int64_t depth, const B& b,
               const Epilogue& e, int64_t column) {
  constexpr int kFull = kTileRows<NV>;
  int64_t row = 0;
  for (; row + kFull <= rows; row += kFull)
    PanelTile<kFull, NV>(x, x_row, depth, b, e, row, column);
  RemainderTile<kFull - 1, NV>(static_cast<int>(rows - row), x, x_row, depth, b, e, row, column);
}

// All columns of one panel: one two-vector tile, or two of one vector.
void PanelProduct(const float* x, int64_t x_row, int64_t rows, const PackedMatrix& w, int64_t panel,
                  const Epilogue& e) {
  const int64_t depth = w.in();
  for (int half = 0; half < 2 / kPanelVectors; ++half) {
    const int64_t column = panel * kPanelColumns + half * kLanes;
    switch (w.type()) {
      case DataType::kF32:
        PanelRows<kPanelVectors>(x, x_row, rows, depth,
                                 PanelF32{w.panel_f32(panel) + half * kLanes}, e, column);
        break;
      case DataType::kF16:
        PanelRows<kPanelVectors>(x, x_row, rows, depth,
                                 PanelF16{w.panel_f16(panel) + half * kLanes}, e, column);
        break;
      case DataType::kBf16:
        if (half == 0) {
          PanelRows<kPanelVectors>(x, x_row, rows, depth, PanelBf16<0>{w.panel_bf16(panel)}, e,
                                   column);
        } else {
          PanelRows<kPanelVectors>(x, x_row, rows, depth, PanelBf16<1>{w.panel_bf16(panel)}, e,
                                   column);
        }
        break;
      case DataType::kQ8:
      case DataType::kQ4:
        break;  // files of their own
    }
  }
}

// A 16-bit panel as float32.
void WidenPanel(const PackedMatrix& w, int64_t panel, float* out) {
  for (int64_t k = 0; k < w.in(); ++k, out += kPanelColumns) {
    V row[2];
    if (w.type() == DataType::kBf16) {
      PanelBf16<0>::LoadRow<2>(PanelBf16<0>{w.panel_bf16(panel)}, k, row);
    } else {
      PanelF16::LoadRow<2>(PanelF16{w.panel_f16(panel)}, k, row);
    }
    Store(row[0], out);
    Store(row[1], out + kLanes);
  }
}

// One row, kSingleRowPanels panels side by side.
template <typename LoadPanelRow>
PS_INLINE void SingleRow(const float* x, int64_t depth, const Epilogue& e, int64_t panel,
                         const LoadPanelRow& load) {
  V acc[kSingleRowPanels][2];
#pragma GCC unroll 4
  for (int p = 0; p < kSingleRowPanels; ++p) acc[p][0] = acc[p][1] = Zero();
  for (int64_t k = 0; k < depth; ++k) {
    const V a = Set1(x[k]);
#pragma GCC unroll 4
    for (int p = 0; p < kSingleRowPanels; ++p) {
      V row[2];
      load(p, k, row);
      acc[p][0] = Fma(a, row[0], acc[p][0]);
      acc[p][1] = Fma(a, row[1], acc[p][1]);
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < kSingleRowPanels; ++p) {
    const int64_t column = (panel + p) * kPanelColumns;
    Finish(e, 0, column, acc[p][0]);
    Finish(e, 0, column + kLanes, acc[p][1]);
  }
}

struct SingleRowF32 {
  const float* panels;
  int64_t panel_size;
  __attribute__((always_inline)) void operator()(int p, int64_t k, V (&row)[2]) const {
    PanelF32::LoadRow<2>(PanelF32{panels + p * panel_size}, k, row);
  }
};
struct SingleRowF16 {
  const uint16_t* panels;
  int64_t panel_size;
  __attribute__((always_inline)) void operator()(int p, int64_t k, V (&row)[2]) const {
    PanelF16::LoadRow<2>(PanelF16{panels + p * panel_size}, k, row);
  }
};
struct SingleRowBf16 {
  const uint32_t* panels;
  int64_t panel_size;
  __attribute__((always_inline)) void operator()(int p, int64_t k, V (&row)[2]) const {
    PanelBf16<0>::LoadRow<2>(PanelBf16<0>{panels + p * panel_size}, k, row);
  }
};

void SingleRowProduct(const float* x, const PackedMatrix& w, int64_t panel, const Epilogue& e) {
  const int64_t depth = w.in();
  switch (w.type()) {
    case DataType::kF32: {
      const SingleRowF32 load{w.panel_f32(panel), depth * kPanelColumns};
      SingleRow(x, depth, e, panel, load);
      return;
    }
    case DataType::kF16: {
      const SingleRowF16 load{w.panel_f16(panel), depth * kPanelColumns};
      SingleRow(x, depth, e, panel, load);
      return;
    }
    case DataType::kBf16: {
      const SingleRowBf16 load{w.panel_bf16(panel), depth * kPanelColumns / 2};
      SingleRow(x, depth, e, panel, load);
      return;
    }
    case DataType::kQ8:
    case DataType::kQ4:
      return;  // files of their own
  }
}

}  // namespace

void MatMul(Context& ctx, const float* x, int64_t rows, const PackedMatrix& w, const float* bias,
            bool accumulate, float* out) {
  if (w.type() == DataType::kQ8) {
    MatMulQ8(ctx, x, rows, w, bias, accumulate, out);
    return;
  }
  if (w.type() == DataType::kQ4) {
    MatMulQ4(ctx, x, rows, w, bias, accumulate, out);
    return;
  }
  const Epilogue e{bias, accumulate, out, w.out(), w.out()};
  const int64_t depth = w.in();
  // A task takes up to four panels: a single row wants them side by side, and a step of few rows
  // wants few tasks.
  const int64_t group = rows < kWidenRows ? kSingleRowPanels : 1;
  const bool widen = rows >= kWidenRows && w.type() != DataType::kF32;
  ctx.pool().ParallelFor((w.panels() + group - 1) / group, [&](int64_t task, int thread) {
    const int64_t first = task * group;
    const int64_t last = std::min(first + group, w.panels());
    if (rows == 1 && last - first == kSingleRowPanels) {
      SingleRowProduct(x, w, first, e);
      return;
    }
    for (int64_t panel = first; panel < last; ++panel) {
      if (!widen) {
        PanelProduct(x, depth, rows, w, panel, e);
        continue;
      }
      float* wide = ctx.Scratch(thread, depth * kPanelColumns);
      WidenPanel(w, panel, wide);
      for (int half = 0; half < 2 / kPanelVectors; ++half) {
        PanelRows<kPanelVectors>(x, depth, rows, depth, PanelF32{wide + half * kLanes}, e,
                                 panel * kPanelColumns + half * kLanes);
      }
    }
  });
}

void MatMulRows(TileUnit tiles, const float* x, int64_t x_row, int rows, const PackedMatrix& w,
                uint8_t* scratch, float* out, int64_t out_row) {
  if (w.type() == DataType::kQ8) {
    MatMulRowsQ8(tiles, x, x_row, rows, w, scratch, out, out_row);
    return;
  }
  if (w.type() == DataType::kQ4) {
    MatMulRowsQ4(x, x_row, rows, w, scratch, out, out_row);
    return;
  }
  const Epilogue e{nullptr, false, out, out_row, w.panels() * kPanelColumns};
  for (int64_t panel = 0; panel < w.panels(); ++panel) PanelProduct(x, x_row, rows, w, panel, e);
}

#include "kernels/cpu/isa_end.h"
