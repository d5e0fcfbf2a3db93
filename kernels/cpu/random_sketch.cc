// The random sketch. A task computes all levels for a tile of rows in its own cache.
#include <algorithm>

#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/simd.h"

#include "kernels/cpu/isa_begin.inc"

namespace {

constexpr int kRowTile = 24;

void MultiplyInto(const float* a, const float* b, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += kLanes) Store(Mul(Load(a + i), Load(b + i)), out + i);
}

}  // namespace

void CpuBackend::ApplyRandomSketch(const RandomSketch& sketch, const float* x, int64_t rows,
                                   float* out) {
  const int64_t out_row = (sketch.size + 7) / 8 * 8;
  const int64_t width = (sketch.size + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
  const int64_t vectors = static_cast<int64_t>(sketch.levels[0].size());
  const int64_t tile_floats = kRowTile * width;
  context_.pool().ParallelFor((rows + kRowTile - 1) / kRowTile, [&](int64_t task, int thread) {
    const int64_t first = task * kRowTile;
    const int count = static_cast<int>(std::min<int64_t>(kRowTile, rows - first));
    // products[j]: product j of a level. Neighbours are multiplied into the lower index, which
    // makes the inputs of the next level.
    float* products = context_.Scratch(thread, (vectors + 1) * tile_floats);
    float* spare = products + vectors * tile_floats;
    for (size_t level = 0; level < sketch.levels.size(); ++level) {
      const auto matrices = sketch.levels[level];
      for (size_t j = 0; j < matrices.size(); ++j) {
        float* target = products + j * tile_floats;
        const float* source = level == 0 ? x + first * sketch.input : spare;
        if (level > 0) std::copy_n(target, count * width, spare);
        // The matrices are float32, so activations stay float32: no units, no memory to convert.
        MultiplyRows({}, source, level == 0 ? sketch.input : width, count, Packed(*matrices[j]),
                     nullptr, target, width);
      }
      for (size_t j = 0; j < matrices.size() / 2; ++j) {
        MultiplyInto(products + 2 * j * tile_floats, products + (2 * j + 1) * tile_floats,
                     count * width, products + j * tile_floats);
      }
    }
    for (int m = 0; m < count; ++m)
      std::copy_n(products + m * width, out_row, out + (first + m) * out_row);
  });
}

#include "kernels/cpu/isa_end.inc"
