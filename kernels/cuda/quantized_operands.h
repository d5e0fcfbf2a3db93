// What products with weights of 8 and of 4 bits take, and what they give.
#pragma once

#include <optional>

#include "kernels/matrix.h"

namespace polysketch::cuda {

// The left operand [rows, w.in()] of a product, before its rows are quantised.
struct QuantInput {
  const float* floats = nullptr;
  const NormWeights* norm = nullptr;  // of `floats`, or null
  std::optional<GateKind> gate = {};  // of `floats` [rows, UpColumns(gate, w.in())], without a norm
};

// What becomes of the sums x w [rows, w.out()].
struct QuantOutput {
  float* floats = nullptr;      // + bias if not null, + floats if `accumulate`
  const float* bias = nullptr;  // [w.out()]
  bool accumulate = false;
  // Of the sums with the bias; `floats` has the columns of a gate then.
  std::optional<GateKind> gate = {};
};

}  // namespace polysketch::cuda
