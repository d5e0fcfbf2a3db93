// Products of rows of activations with packed matrices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "kernels/cpu/backend.h"

namespace polysketch::cpu::PS_ISA {

// Where the sums of a product go, and what is added to them.
struct Epilogue {
  const float* bias;  // [columns], or null
  bool accumulate;    // add the previous content of out
  float* out;
  int64_t out_row;  // floats from one row of out to the next
  int64_t columns;  // of the result; a panel may have more
};

// Bytes of converted activations in any format: whole blocks of rows of up to 16-bit elements, a
// scale for each row, a number for each group of 32 elements.
inline int64_t ConvertedBytes(int64_t rows, int64_t width) {
  const int64_t blocks = (rows + kTileBlock - 1) / kTileBlock * kTileBlock;
  const int64_t bytes = (2 * width + kTileRowBytes - 1) / kTileRowBytes * kTileRowBytes;
  return blocks * (bytes + 4 * Q4Groups(width) + 4);
}

// x w, x [rows, w.in()].
struct Product {
  const PackedMatrix& w;
  const float* x;
  int64_t x_row;  // floats from one row of x to the next
  int64_t rows;
  Epilogue epilogue;
  ProductUnits units;
  // Null: the calling thread computes the product alone. Else all threads of the pool do.
  Context* context;
  // With a null context: memory for converted activations, ConvertedBytes(rows, w.in()).
  uint8_t* scratch = nullptr;
  // Null, or where the scales of the result's rows go, at most kTileBlock: then the result is
  // gelu(x w), in whole panels without a bias or previous content. Only a product with q8 weights
  // computes the scales. Where the next product rounds its activations, gelu is GeluBeforeRounding.
  QuantScale* gelu_scales = nullptr;
  // Null, or the scales of the rows of x, for q8 weights.
  const QuantScale* x_scales = nullptr;
  // With a value the result is u * gate(g), [u, g] = x w, without a bias: CanBeGated.
  std::optional<GateKind> gate = std::nullopt;

  int threads() const { return context == nullptr ? 1 : context->threads(); }
  uint8_t* Converted() const {
    return context == nullptr ? scratch : context->Shared(ConvertedBytes(rows, w.in()));
  }
  // Calls convert(first, last) for ranges of rows that cover all.
  template <typename Fn>
  void ForRowRanges(const Fn& convert) const {
    if (context == nullptr) return convert(int64_t{0}, rows);
    context->ParallelRows(rows, 1 + 16384 / w.in(),
                          [&](int64_t first, int64_t last, int) { convert(first, last); });
  }
  // Calls convert(row) for every row.
  template <typename Fn>
  void ForRows(const Fn& convert) const {
    ForRowRanges([&](int64_t first, int64_t last) {
      for (int64_t m = first; m < last; ++m) convert(m);
    });
  }
  // Parts of the rows meet at multiples of row_unit(), whole register tiles or AMX tiles, and are
  // long: reading, or widening, a panel takes little of their time.
  static constexpr int64_t kMinPartRows = 48;
  int64_t row_unit() const { return units.tiles == TileUnit::kNone ? 12 : kTileBlock; }
  // Into how many parts the rows of each of `groups` groups of panels are cut: more than one if
  // rows are many and the groups few for the threads.
  int64_t RowParts(int64_t groups) const {
    return context == nullptr ? 1 : context->Parts(groups, rows / kMinPartRows);
  }
  int64_t result_panels() const { return gate ? w.panels() / 2 : w.panels(); }
  // The panel that a thread probably multiplies by after `panel`, one of a range of ForPanels: the
  // next of the range, or, the other threads taking the ranges in between, the first of the range
  // after them.
  int64_t PanelAfter(int64_t panel, const Range& range, int64_t group) const {
    const int64_t panels = result_panels();
    if (panel + 1 < range.last) return panel + 1;
    const int64_t skipped = group * ((threads() - 1) / RowParts((panels + group - 1) / group));
    return std::min(range.last + skipped, panels - 1);
  }
  // Calls fn(panels, rows, thread) for groups of `group` neighbouring panels and parts of the rows.
  template <typename Fn>
  void ForPanels(int64_t group, const Fn& fn) const {
    const int64_t panels = result_panels(), groups = (panels + group - 1) / group;
    const int64_t parts = RowParts(groups);
    const auto run = [&](int64_t task, int thread) {
      const int64_t first = task / parts * group;
      fn(Range{first, std::min(first + group, panels)},
         Part{task % parts, parts}.Of({0, rows}, row_unit()), thread);
    };
    if (context != nullptr) return context->pool().ParallelFor(groups * parts, run);
    for (int64_t task = 0; task < groups; ++task) run(task, 0);
  }
};

// Whether a product can be gated: by register tiles of q8 or bf16 weights, and u has whole panels.
inline bool CanBeGated(const PackedMatrix& w, const ProductUnits& units) {
  const bool dots =
      w.type() == DataType::kQ8 || (w.type() == DataType::kBf16 && units.round_to_bf16());
  return dots && units.tiles == TileUnit::kNone && w.out() % (2 * kPanelColumns) == 0;
}

// Computes a product: by the function below for its weight format and units, else in float32.
void Multiply(const Product& p);
void MultiplyQ8(const Product& p);
void MultiplyQ4(const Product& p);
void MultiplyBf16(const Product& p);

}  // namespace polysketch::cpu::PS_ISA
