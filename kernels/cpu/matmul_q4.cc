// Products with 4-bit weights (kernels/quantize.h). Here the weights are the unsigned operand of
// the byte dot product (integer + 8) and the activations the signed one, so that what the 8 adds is
// a number of the row and group alone. Sums of a group are exact; groups are added in order.
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

// Rows of a register tile: integers of the group and float sums of all groups so far.
constexpr int kTileRowsQ4 = kPanelVectors == 2 ? 6 : 2;
constexpr int kGroupWords = kQ4Group / 8;         // words of a column in a group
constexpr int64_t kRowBytes = kPanelColumns * 4;  // of a row of a panel

// Panels of a task when rows are few: long enough a stretch of memory for the hardware's
// prefetchers.
constexpr int64_t kTaskPanels = 4;

// Rows of signed bytes, whole groups, zero behind the width.
struct SignedRows {
  int8_t* bytes;
  int64_t groups;
  int32_t* corrections;  // [rows][groups]: -8 times the sum of the group's integers
  float* scales;

  int64_t row_size() const { return groups * kQ4Group; }

  // memory: ConvertedBytes(rows, width).
  static SignedRows In(uint8_t* memory, int64_t rows, int64_t width) {
    SignedRows result;
    result.groups = Q4Groups(width);
    result.scales = reinterpret_cast<float*>(memory);
    result.corrections = reinterpret_cast<int32_t*>(memory) + rows;
    result.bytes = reinterpret_cast<int8_t*>(result.corrections + rows * result.groups);
    return result;
  }
};

void QuantizeSignedRow(const float* x, int64_t width, int64_t row, const SignedRows& out) {
  const QuantScale scale = RowScale(x, width);
  const V inverse = Set1(scale.inverse);
  int8_t* bytes = out.bytes + row * out.row_size();
  for (int64_t i = 0; i < out.row_size(); i += kLanes) {
    const int64_t left = std::clamp<int64_t>(width - i, 0, kLanes);
    StoreSignedBytes(Mul(LoadMasked(x + i, FirstN(static_cast<int>(left))), inverse), bytes + i);
  }
  for (int64_t g = 0; g < out.groups; ++g) {
    int32_t sum = 0;
    for (int64_t i = 0; i < kQ4Group; ++i) sum += bytes[g * kQ4Group + i];
    out.corrections[row * out.groups + g] = -8 * sum;
  }
  out.scales[row] = scale.scale;
}

// A register tile of MR rows and NV vectors.
template <int MR, int NV>
struct TileQ4 {
  V sums[MR][NV];

  PS_INLINE void Clear(TileQ4* t) {
#pragma GCC unroll 8
    for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) t->sums[m][n] = Zero();
    }
  }

  // Scales and words of the panel's group `index`, from the tile's first column on.
  PS_INLINE void AddGroup(TileQ4* t, const SignedRows& x, int64_t row, int64_t index,
                          const uint8_t* scales, const uint8_t* words) {
    I acc[MR][NV];
#pragma GCC unroll 8
    for (int m = 0; m < MR; ++m) {
      const I correction = BroadcastInt(x.corrections + (row + m) * x.groups + index);
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) acc[m][n] = correction;
    }
    const int8_t* bytes = x.bytes + row * x.row_size() + index * kQ4Group;
    for (int64_t k = 0; k < kGroupWords; ++k) {
      I lower[NV], upper[NV];
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) {
        const I pairs = IntLoad(words + k * kRowBytes + n * kLanes * 4);
        lower[n] = LowerNibbles(pairs);
        upper[n] = UpperNibbles(pairs);
      }
#pragma GCC unroll 8
      for (int m = 0; m < MR; ++m) {
        const int8_t* eight = bytes + m * x.row_size() + k * 8;
        const I first = BroadcastBytes(eight), second = BroadcastBytes(eight + 4);
#pragma GCC unroll 8
        for (int n = 0; n < NV; ++n) {
          acc[m][n] = DotBytes(DotBytes(acc[m][n], lower[n], first), upper[n], second);
        }
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) {
      const V group_scale = LoadBf16(reinterpret_cast<const uint16_t*>(scales) + n * kLanes);
#pragma GCC unroll 8
      for (int m = 0; m < MR; ++m) {
        t->sums[m][n] = Fma(ToFloat(acc[m][n]), group_scale, t->sums[m][n]);
      }
    }
  }
};

template <int MR, int NV>
void PanelTileQ4(const SignedRows& x, int64_t row, const PackedMatrix& w, int64_t panel,
                 int first_vector, const Epilogue& e) {
  using Tile = TileQ4<MR, NV>;
  Tile tile;
  Tile::Clear(&tile);
  const uint8_t* group = w.panel_q4(panel);
  for (int64_t g = 0; g < x.groups; ++g, group += kQ4GroupBytes) {
    Tile::AddGroup(&tile, x, row, g, group + first_vector * kLanes * 2,
                   group + kQ4ScaleBytes + first_vector * kLanes * 4);
  }
  const int64_t column = panel * kPanelColumns + first_vector * kLanes;
#pragma GCC unroll 8
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) {
      Finish(e, row + m, column + n * kLanes, Mul(tile.sums[m][n], Set1(x.scales[row + m])));
    }
  }
}

template <int MR>
void RemainderQ4(int rows, const SignedRows& x, int64_t row, const PackedMatrix& w, int64_t panel,
                 int first_vector, const Epilogue& e) {
  if constexpr (MR > 0) {
    if (rows == MR) {
      PanelTileQ4<MR, kPanelVectors>(x, row, w, panel, first_vector, e);
    } else {
      RemainderQ4<MR - 1>(rows, x, row, w, panel, first_vector, e);
    }
  }
}

void PanelQ4(const SignedRows& x, int64_t rows, const PackedMatrix& w, int64_t panel,
             const Epilogue& e) {
  for (int vector = 0; vector < 2; vector += kPanelVectors) {
    int64_t row = 0;
    for (; row + kTileRowsQ4 <= rows; row += kTileRowsQ4) {
      PanelTileQ4<kTileRowsQ4, kPanelVectors>(x, row, w, panel, vector, e);
    }
    RemainderQ4<kTileRowsQ4 - 1>(static_cast<int>(rows - row), x, row, w, panel, vector, e);
  }
}

}  // namespace

void MatMulQ4(Context& ctx, const float* x, int64_t rows, const PackedMatrix& w, const float* bias,
              bool accumulate, float* out) {
  const SignedRows quantized =
      SignedRows::In(ctx.Shared(ConvertedBytes(rows, w.in())), rows, w.in());
  ctx.ParallelRows(rows, 1 + 16384 / w.in(), [&](int64_t first, int64_t last, int) {
    for (int64_t m = first; m < last; ++m) QuantizeSignedRow(x + m * w.in(), w.in(), m, quantized);
  });
  const Epilogue e{bias, accumulate, out, w.out(), w.out()};
  const int64_t group = rows <= kTileRowsQ4 ? kTaskPanels : 1;
  ctx.pool().ParallelFor((w.panels() + group - 1) / group, [&](int64_t task, int) {
    const int64_t first = task * group;
    const int64_t last = std::min(first + group, w.panels());
    for (int64_t panel = first; panel < last; ++panel) {
      if (rows == 1) {  // the whole width at once: the panel is read front to back
        PanelTileQ4<1, 2>(quantized, 0, w, panel, 0, e);
      } else {
        PanelQ4(quantized, rows, w, panel, e);
      }
    }
  });
}

void MatMulRowsQ4(const float* x, int64_t x_row, int rows, const PackedMatrix& w, uint8_t* scratch,
                  float* out, int64_t out_row) {
  const SignedRows quantized = SignedRows::In(scratch, rows, w.in());
  for (int m = 0; m < rows; ++m) QuantizeSignedRow(x + m * x_row, w.in(), m, quantized);
  const Epilogue e{nullptr, false, out, out_row, w.panels() * kPanelColumns};
  for (int64_t panel = 0; panel < w.panels(); ++panel) PanelQ4(quantized, rows, w, panel, e);
}

#include "kernels/cpu/isa_end.h"
