// The learned sketch in one pass: a task computes both branches for a tile of rows in its own
// cache, so that only inputs are read from memory and only sketches written to it. The weights of a
// layer, some hundred KB, stay in L2 across tiles.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/simd.h"

#include "kernels/cpu/isa_begin.inc"

namespace {

// Rows of a task: one register tile of 12 rows, or two if there are many rows; 32 with AMX.
constexpr int kSmallTile = 12;
constexpr int kLargeTile = 24;
static_assert(kLargeTile <= kTileBlock);

int64_t PanelWidth(const Matrix& w) {
  return (w.out() + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
}

// One level for `rows` rows: out [rows, PanelWidth(down)].
void ApplyLevel(const ProductUnits& units, const SketchNetwork::Level& level, int in,
                const float* x, int64_t x_row, int rows, float* normed, float* hidden,
                uint8_t* converted, float* out) {
  const PackedMatrix &up = Packed(*level.up), &down = Packed(*level.down);
  const int64_t hidden_row = PanelWidth(up);
  NormRows(x, x_row, rows, in, level.norm, normed, in);
  QuantScale scales[kTileBlock];
  MultiplyRows(units, normed, in, rows, up, converted, hidden, hidden_row, scales);
  MultiplyRows(units, hidden, hidden_row, rows, down, converted, out, PanelWidth(down), nullptr,
               up.type() == DataType::kQ8 ? scales : nullptr);
}

}  // namespace

void CpuBackend::LearnedSketch(const SketchNetwork& net, const float* x, int64_t rows, float* out) {
  const int size = net.size;
  const int64_t out_row = (size + 7) / 8 * 8;
  const int64_t branch_row = PanelWidth(*net.branch[0][0].down);
  const int64_t hidden_row = PanelWidth(*net.branch[0][0].up);
  const int64_t normed_row = std::max(net.input, size);
  const int64_t large = context_.units().tiles == TileUnit::kNone ? kLargeTile : kTileBlock;
  const int64_t tile = rows >= 2 * large * context_.threads() ? large : kSmallTile;
  const V scale_in = Set1(1.0f / std::sqrt(static_cast<float>(size)));
  const V scale_out = Set1(std::sqrt(static_cast<float>(size)));
  context_.pool().ParallelFor((rows + tile - 1) / tile, [&](int64_t task, int thread) {
    const int64_t first = task * tile;
    const int count = static_cast<int>(std::min(tile, rows - first));
    const int64_t converted_floats = ConvertedBytes(tile, std::max(normed_row, hidden_row)) / 4 + 1;
    float* normed = context_.Scratch(
        thread, tile * (normed_row + hidden_row + 3 * branch_row) + converted_floats);
    float* hidden = normed + tile * normed_row;
    float* middle = hidden + tile * hidden_row;
    auto* converted = reinterpret_cast<uint8_t*>(middle + tile * 3 * branch_row);
    float* branches[2] = {middle + tile * branch_row, middle + 2 * tile * branch_row};
    for (int b = 0; b < 2; ++b) {
      ApplyLevel(context_.units(), net.branch[b][0], net.input, x + first * net.input, net.input,
                 count, normed, hidden, converted, middle);
      ApplyLevel(context_.units(), net.branch[b][1], size, middle, branch_row, count, normed,
                 hidden, converted, branches[b]);
    }
    // Columns from r on are zero in both branches, and so in the result.
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

#include "kernels/cpu/isa_end.inc"
