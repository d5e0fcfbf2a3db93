// Products of few rows with 16-bit weights: bound by the time to read the weights.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/matrix.h"

namespace polysketch::cuda {

constexpr int64_t kSkinnyRows = 64;  // at most

// The left operand x [rows, w.in()] of a product. Exactly one pointer is set.
struct SkinnyInput {
  const float* floats = nullptr;      // rounded to the format of w
  const uint16_t* halves = nullptr;   // [rows, w.padded_in()], in the format of w, zero-padded
  const NormWeights* norm = nullptr;  // of `floats` before the rounding, or null
};

// Weights of later products, which the kernel starts to load to L2 once its own loads are under way:
// the memory is idle while small kernels follow. It changes no result.
struct SkinnyPrefetch {
  struct Range {
    const uint8_t* data = nullptr;
    int64_t bytes = 0;  // a multiple of 128
  };
  Range next[2];
};

// What becomes of the sums x w [rows, w.out()].
struct SkinnyOutput {
  float* floats = nullptr;      // + bias if not null, + floats if `accumulate`
  const float* bias = nullptr;  // [out]
  bool accumulate = false;
  // If not null: the gate (Backend::Gate) of the sums with the bias, rounded to the format of w.
  uint16_t* gated = nullptr;
  GateKind gate = GateKind::kGelu;
};

// Whether the kernel takes this input and output as they are. If not, the caller rounds the input
// to halves first, or applies the gate to sums in float32.
bool SkinnyTakes(int64_t rows, const CudaMatrix& w, const SkinnyInput& input);
bool SkinnyGates(GateKind gate, const CudaMatrix& w);

// 1 <= rows <= kSkinnyRows. Each sum is the chain of HalfProduct (matmul.cu): the same bits.
void SkinnyProduct(Device* device, int64_t rows, const CudaMatrix& w, const SkinnyInput& input,
                   const SkinnyOutput& output, const SkinnyPrefetch& prefetch);

}  // namespace polysketch::cuda
