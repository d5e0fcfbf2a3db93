// The sketch network, fused: a task takes a tile of rows through both branches in its own cache;
// only inputs and sketches travel. The weights of a layer (some hundred KB) stay in L2 across
// tiles.
#include <immintrin.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"

namespace {

// Whole register tiles of 12 rows; two of them when there are plenty of rows. A block of tile
// registers takes 32.
constexpr int kSmallTile = 12;
constexpr int kLargeTile = 24;

int64_t PanelWidth(const Matrix& w) {
  return (w.out() + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
}

// One level for `rows` rows: out [rows, PanelWidth(down)].
void ApplyLevel(const ProductUnits& units, const SketchNetwork::Level& level, int in,
                const float* x, int64_t x_row, int rows, float* normed, float* hidden,
                uint8_t* converted, float* out) {
  const auto& up = static_cast<const PackedMatrix&>(*level.up);
  const auto& down = static_cast<const PackedMatrix&>(*level.down);
  const int64_t hidden_row = PanelWidth(up);
  LayerNormRows(x, x_row, rows, in, level.norm, normed, in);
  MatMulRows(units, normed, in, rows, up, converted, hidden, hidden_row);
  if (down.type() == DataType::kQ8) {
    GeluMatMulRowsQ8(units.tiles, hidden, hidden_row, rows, down, converted, out, PanelWidth(down));
    return;
  }
  GeluArray(hidden, rows * hidden_row, hidden);
  MatMulRows(units, hidden, hidden_row, rows, down, converted, out, PanelWidth(down));
}

}  // namespace

void LearnedSketch(Context& ctx, const SketchNetwork& net, const float* x, int64_t rows,
                   float* out) {
  const int size = net.size;
  const int64_t out_row = (size + 7) / 8 * 8;
  const int64_t branch_row = PanelWidth(*net.branch[0][0].down);
  const int64_t hidden_row = PanelWidth(*net.branch[0][0].up);
  const int64_t normed_row = std::max(net.input, size);
  const int64_t large = ctx.units().tiles == TileUnit::kNone ? kLargeTile : kTileBlock;
  const int64_t tile = rows >= 2 * large * ctx.threads() ? large : kSmallTile;
  const V scale_in = Set1(1.0f / std::sqrt(static_cast<float>(size)));
  const V scale_out = Set1(std::sqrt(static_cast<float>(size)));
  ctx.pool().ParallelFor((rows + tile - 1) / tile, [&](int64_t task, int thread) {
    const int64_t first = task * tile;
    const int count = static_cast<int>(std::min(tile, rows - first));
    const int64_t converted_floats = ConvertedBytes(tile, std::max(normed_row, hidden_row)) / 4 + 1;
    float* normed =
        ctx.Scratch(thread, tile * (normed_row + hidden_row + 3 * branch_row) + converted_floats);
    float* hidden = normed + tile * normed_row;
    float* middle = hidden + tile * hidden_row;
    auto* converted = reinterpret_cast<uint8_t*>(middle + tile * 3 * branch_row);
    float* branches[2] = {middle + tile * branch_row, middle + 2 * tile * branch_row};
    for (int b = 0; b < 2; ++b) {
      ApplyLevel(ctx.units(), net.branch[b][0], net.input, x + first * net.input, net.input, count,
                 normed, hidden, converted, middle);
      ApplyLevel(ctx.units(), net.branch[b][1], size, middle, branch_row, count, normed, hidden,
                 converted, branches[b]);
    }
    // Columns behind r are zero in both branches, so they stay zero.
    for (int m = 0; m < count; ++m) {
      for (int64_t i = 0; i < out_row; i += kLanes) {
        const Mask mask = FirstN(static_cast<int>(std::min<int64_t>(kLanes, out_row - i)));
        const V product =
            Mul(Load(branches[0] + m * branch_row + i), Load(branches[1] + m * branch_row + i));
        StoreMasked(Mul(scale_out, Tanh(Mul(product, scale_in))), out + (first + m) * out_row + i,
                    mask);
      }
    }
  });
}

#include "kernels/cpu/isa_end.h"
