// The ops of the reference backend as free functions, one file each. Shapes and meaning:
// kernels/backend.h.
//
// Sums and transcendentals run in float64 and are rounded to float32 once, at the end of an op:
// what remains against the exact value is that one rounding, so a test's tolerance is the error
// bound of the kernel under test alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"

namespace polysketch::reference {

void Embed(const Matrix& embedding, std::span<const int32_t> tokens,
           std::span<const int64_t> positions, float* out);
void LayerNorm(const float* x, int64_t rows, int width, const NormWeights& norm, float* out);
void MatMul(const float* x, int64_t rows, const Matrix& w, const float* bias, bool accumulate,
            float* out);
void Rope(const float* qkv, std::span<const int64_t> positions, int heads, int head_dim, float* q,
          float* k);
void GeluGate(const float* up, int64_t rows, int hidden, float* out);
void LearnedSketch(const SketchNetwork& net, const float* x, int64_t rows, float* out);
void ApplyRandomSketch(const RandomSketch& sketch, const float* x, int64_t rows, float* out);
void LinearFeatures(const float* x, int64_t rows, int width, float* out);
void PerformerFeatures(const Matrix& omega, const float* x, int64_t rows, float* out);
void Attention(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
               const AttentionInput& input, float* out);
void LogSumExp(const float* x, int64_t rows, int64_t width, float* out);

// One row in float64, for the ops above that are made of these.
using Row = std::vector<double>;
Row NormRow(const Row& x, const NormWeights& norm);
Row MultiplyRow(const Row& x, const Matrix& w);
// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
double Gelu(double x);

}  // namespace polysketch::reference
