// Ops on a tile of rows by the calling thread alone. Fused ops consist of them: a tile passes
// through all of them in the thread's cache.
#pragma once

#include <cstdint>

#include "kernels/cpu/product.h"

namespace polysketch::cpu::PS_ISA {

// Rows of x are `x_row` floats apart, rows of out `out_row` floats.
void NormRows(const float* x, int64_t x_row, int64_t rows, int width, const NormWeights& norm,
              float* out, int64_t out_row);
// out[i] = gelu(x[i]); out may be x.
void GeluArray(const float* x, int64_t size, float* out);
// x w by the calling thread. Writes whole panels of 32 columns to out. scratch:
// ConvertedBytes(rows, w.in()) bytes if activations are converted, else unused. gelu_scales and
// x_scales: Product.
inline void MultiplyRows(const ProductUnits& units, const float* x, int64_t x_row, int rows,
                         const PackedMatrix& w, uint8_t* scratch, float* out, int64_t out_row,
                         QuantScale* gelu_scales = nullptr, const QuantScale* x_scales = nullptr) {
  const Epilogue e{nullptr, false, out, out_row, w.panels() * kPanelColumns};
  Multiply({w, x, x_row, rows, e, units, nullptr, scratch, gelu_scales, x_scales});
}

}  // namespace polysketch::cpu::PS_ISA
