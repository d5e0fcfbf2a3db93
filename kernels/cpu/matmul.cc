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

// A panel as an operand of MultiplyTile.
struct PanelF32 {
  static constexpr int kStep = 1;
  const float* data;
  template <int NV, int kPart>
  PS_INLINE void LoadRow(const PanelF32& b, int64_t k, V (&out)[NV]) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) out[n] = Load(b.data + k * kPanelColumns + n * kLanes);
  }
};
struct PanelF16 {
  static constexpr int kStep = 1;
  const uint16_t* data;
  template <int NV, int kPart>
  PS_INLINE void LoadRow(const PanelF16& b, int64_t k, V (&out)[NV]) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) out[n] = LoadF16(b.data + k * kPanelColumns + n * kLanes);
  }
};
struct PanelBf16 {
  static constexpr int kStep = 2;
  const uint32_t* data;
  template <int NV, int kPart>
  PS_INLINE void LoadRow(const PanelBf16& b, int64_t k, V (&out)[NV]) {
    const uint32_t* words = b.data + k / 2 * kPanelColumns;
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) {
      out[n] = kPart == 0 ? LoadBf16Lower(words + n * kLanes) : LoadBf16Upper(words + n * kLanes);
    }
  }
};

// Neighbouring panels side by side, `size` elements apart.
template <typename Panel>
struct PanelsAbreast {
  static constexpr int kStep = Panel::kStep;
  Panel first;
  int64_t size;
  template <int NV, int kPart>
  PS_INLINE void LoadRow(const PanelsAbreast& b, int64_t k, V (&out)[NV]) {
#pragma GCC unroll 4
    for (int p = 0; p < NV / 2; ++p) {
      V part[2];
      Panel::template LoadRow<2, kPart>(Panel{b.first.data + p * b.size}, k, part);
      out[2 * p] = part[0];
      out[2 * p + 1] = part[1];
    }
  }
};

template <int MR, int NV, typename B>
void PanelTile(const float* x, int64_t x_row, int64_t depth, const B& b, const Epilogue& e,
               int64_t row, int64_t column) {
  V acc[MR][NV];
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) acc[m][n] = Zero();
  }
  MultiplyTile<MR, NV>(x + row * x_row, x_row, 1, depth, b, acc);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 8
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
        PanelRows<kPanelVectors>(x, x_row, rows, depth,
                                 PanelBf16{w.panel_bf16(panel) + half * kLanes}, e, column);
        break;
      case DataType::kQ8:
      case DataType::kQ4:
        break;  // files of their own
    }
  }
}

// A row of a 16-bit panel as float32.
template <int kPart, typename Panel>
void WidenRow(const Panel& panel, int64_t k, float* out) {
  V row[2];
  Panel::template LoadRow<2, kPart>(panel, k, row);
  Store(row[0], out + (k + kPart) * kPanelColumns);
  Store(row[1], out + (k + kPart) * kPanelColumns + kLanes);
}

template <typename Panel>
void WidenRows(const Panel& panel, int64_t depth, float* out) {
  for (int64_t k = 0; k < depth; k += Panel::kStep) {
    WidenRow<0>(panel, k, out);
    if constexpr (Panel::kStep == 2) {
      if (k + 1 < depth) WidenRow<1>(panel, k, out);
    }
  }
}

void WidenPanel(const PackedMatrix& w, int64_t panel, float* out) {
  if (w.type() == DataType::kBf16) {
    WidenRows(PanelBf16{w.panel_bf16(panel)}, w.in(), out);
  } else {
    WidenRows(PanelF16{w.panel_f16(panel)}, w.in(), out);
  }
}

// One row, kSingleRowPanels panels side by side.
template <typename Panel>
void SingleRow(const float* x, const PackedMatrix& w, const Panel& first, int64_t size,
               int64_t panel, const Epilogue& e) {
  PanelTile<1, 2 * kSingleRowPanels>(x, 0, w.in(), PanelsAbreast<Panel>{first, size}, e, 0,
                                     panel * kPanelColumns);
}

void SingleRowProduct(const float* x, const PackedMatrix& w, int64_t panel, const Epilogue& e) {
  const int64_t size = w.in() * kPanelColumns;
  switch (w.type()) {
    case DataType::kF32:
      SingleRow(x, w, PanelF32{w.panel_f32(panel)}, size, panel, e);
      return;
    case DataType::kF16:
      SingleRow(x, w, PanelF16{w.panel_f16(panel)}, size, panel, e);
      return;
    case DataType::kBf16:
      SingleRow(x, w, PanelBf16{w.panel_bf16(panel)}, w.depth2() * kPanelColumns, panel, e);
      return;
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
  if (w.type() == DataType::kBf16 && ctx.units().bf16_dots) {
    MatMulBf16(ctx, x, rows, w, bias, accumulate, out);
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

void MatMulRows(const ProductUnits& units, const float* x, int64_t x_row, int rows,
                const PackedMatrix& w, uint8_t* scratch, float* out, int64_t out_row) {
  if (w.type() == DataType::kQ8) {
    MatMulRowsQ8(units.tiles, x, x_row, rows, w, scratch, out, out_row);
    return;
  }
  if (w.type() == DataType::kQ4) {
    MatMulRowsQ4(x, x_row, rows, w, scratch, out, out_row);
    return;
  }
  if (w.type() == DataType::kBf16 && units.bf16_dots) {
    MatMulRowsBf16(x, x_row, rows, w, scratch, out, out_row);
    return;
  }
  const Epilogue e{nullptr, false, out, out_row, w.panels() * kPanelColumns};
  for (int64_t panel = 0; panel < w.panels(); ++panel) PanelProduct(x, x_row, rows, w, panel, e);
}

#include "kernels/cpu/isa_end.h"
