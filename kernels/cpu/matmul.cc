// Dense products. Threads divide panels of output columns, and the rows too if panels are few for
// them (Product::ForPanels). A product of few rows reads each panel
// once at memory speed; a product of many rows first widens a panel to float32 in cache and reads
// that for every row tile.
#include <algorithm>

#include "kernels/cpu/panel_tiles.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/register_tile.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/simd.h"

#include "kernels/cpu/isa_begin.inc"

namespace {

// From this number of rows on, a 16-bit panel is widened once, and not in every row tile. The bits
// are the same.
constexpr int kWidenRows = 25;

PS_INLINE V LoadElements(const float* p) { return Load(p); }
PS_INLINE V LoadElements(const uint16_t* p) { return LoadF16(p); }

// A panel of float32 or f16 as the operand of MultiplyTile.
template <typename T>
struct Panel {
  static constexpr int kStep = 1;
  const T* data;
  template <int NV, int kPart>
  PS_INLINE void LoadRow(const Panel& b, int64_t k, V (&out)[NV]) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) out[n] = LoadElements(b.data + k * kPanelColumns + n * kLanes);
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

// Neighbouring panels, `size` elements apart, as one operand.
template <typename P>
struct PanelsAbreast {
  static constexpr int kStep = P::kStep;
  P first;
  int64_t size;
  template <int NV, int kPart>
  PS_INLINE void LoadRow(const PanelsAbreast& b, int64_t k, V (&out)[NV]) {
#pragma GCC unroll 4
    for (int p = 0; p < NV / 2; ++p) {
      V part[2];
      P::template LoadRow<2, kPart>(P{b.first.data + p * b.size}, k, part);
      out[2 * p] = part[0];
      out[2 * p + 1] = part[1];
    }
  }
};

// Calls visit(panel, elements or words of a panel).
template <typename Visit>
void VisitPanel(const PackedMatrix& w, int64_t index, const Visit& visit) {
  const int64_t size = w.depth() * kPanelColumns;
  switch (w.type()) {
    case DataType::kF32:
      return visit(Panel<float>{w.panel<float>(index)}, size);
    case DataType::kF16:
      return visit(Panel<uint16_t>{w.panel<uint16_t>(index)}, size);
    case DataType::kBf16:
      return visit(PanelBf16{w.panel<uint32_t>(index)}, size);
    case DataType::kQ8:
    case DataType::kQ4:
      break;  // matmul_q8.cc, matmul_q4.cc
  }
}

template <int MR, int NV, typename B>
void PanelTile(const Product& p, const B& b, int64_t row, int64_t column) {
  V acc[MR][NV];
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) acc[m][n] = Zero();
  }
  MultiplyTile<MR, NV>(p.x + row * p.x_row, p.x_row, 1, p.w.in(), b, acc);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) Finish(p.epilogue, row + m, column + n * kLanes, acc[m][n]);
  }
}

// Multiplies rows by one panel: in tiles of two vectors, or in two passes of one vector.
template <typename P>
void PanelProduct(const Product& p, const P& panel, int64_t index, const Range& rows) {
  constexpr int NV = kPanelVectors;
  for (int half = 0; half < 2 / NV; ++half) {
    ForRowTiles<kTileRows<NV>>(rows, [&]<int MR>(int64_t row) {
      PanelTile<MR, NV>(p, P{panel.data + half * kLanes}, row,
                        index * kPanelColumns + half * kLanes);
    });
  }
}

// A row of a 16-bit panel as float32.
template <int kPart, typename P>
void WidenRow(const P& panel, int64_t k, float* out) {
  V row[2];
  P::template LoadRow<2, kPart>(panel, k, row);
  Store(row[0], out + (k + kPart) * kPanelColumns);
  Store(row[1], out + (k + kPart) * kPanelColumns + kLanes);
}

template <typename P>
void WidenPanel(const P& panel, int64_t depth, float* out) {
  for (int64_t k = 0; k < depth; k += P::kStep) {
    WidenRow<0>(panel, k, out);
    if constexpr (P::kStep == 2) {
      if (k + 1 < depth) WidenRow<1>(panel, k, out);
    }
  }
}

void MultiplyFloat(const Product& p) {
  const PackedMatrix& w = p.w;
  // A task of few rows processes several panels: one row is multiplied by all of them at once.
  const int64_t group = p.rows < kWidenRows ? kSingleRowPanels : 1;
  const bool widen = p.rows >= kWidenRows && w.type() != DataType::kF32 && p.context != nullptr;
  p.ForPanels(group, [&](const Range& panels, const Range& rows, int thread) {
    if (p.rows == 1 && panels.size() == kSingleRowPanels) {
      return VisitPanel(w, panels.first, [&]<typename P>(const P& panel, int64_t size) {
        PanelTile<1, 2 * kSingleRowPanels>(p, PanelsAbreast<P>{panel, size}, 0,
                                           panels.first * kPanelColumns);
      });
    }
    for (int64_t index = panels.first; index < panels.last; ++index) {
      VisitPanel(w, index, [&](const auto& panel, int64_t) {
        if (!widen) return PanelProduct(p, panel, index, rows);
        float* wide = p.context->Scratch(thread, w.in() * kPanelColumns);
        WidenPanel(panel, w.in(), wide);
        PanelProduct(p, Panel<float>{wide}, index, rows);
      });
    }
  });
}

}  // namespace

void Multiply(const Product& p) {
  if (p.w.type() == DataType::kQ8) return MultiplyQ8(p);
  if (p.w.type() == DataType::kBf16 && p.units.round_to_bf16()) return MultiplyBf16(p);
  p.w.type() == DataType::kQ4 ? MultiplyQ4(p) : MultiplyFloat(p);
  const Epilogue& e = p.epilogue;
  if (p.gelu_scales != nullptr) GeluArray(e.out, p.rows * e.out_row, e.out);
}

void CpuBackend::MatMul(const float* x, int64_t rows, const Matrix& w, const float* bias,
                        bool accumulate, float* out) {
  Multiply({Packed(w),
            x,
            w.in(),
            rows,
            {bias, accumulate, out, w.out(), w.out()},
            context_.units(),
            &context_});
}

// With many rows Gate takes its operands from registers and cache, and what `up` yields [rows, 2
// hidden] is not written.
void CpuBackend::Mlp(const MlpWeights& mlp, int64_t rows, float* x, float* scratch) {
  const PackedMatrix& up = Packed(*mlp.up);
  if (rows < kTileRows<kPanelVectors> || mlp.up_bias != nullptr ||
      mlp.gate == GateKind::kUngatedGelu || !CanBeGated(up, context_.units())) {
    return Backend::Mlp(mlp, rows, x, scratch);
  }
  const int64_t hidden = mlp.down->in();
  float* gated = scratch + rows * up.in();
  Norm(x, rows, static_cast<int>(up.in()), mlp.norm, scratch);
  Product product{
      up,       scratch, up.in(), rows, {nullptr, false, gated, hidden, hidden}, context_.units(),
      &context_};
  product.gate = mlp.gate;
  Multiply(product);
  MatMul(gated, rows, *mlp.down, mlp.down_bias, /*accumulate=*/true, x);
}

#include "kernels/cpu/isa_end.inc"
