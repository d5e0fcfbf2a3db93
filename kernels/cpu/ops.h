// The ops of the cpu backend for one instruction set: shapes and meaning as in kernels/backend.h.
// Included by op files, which CMake compiles once for each instruction set (isa_begin.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/packed_matrix.h"

#if !defined(PS_ISA)
#define PS_ISA avx512
#define PS_ISA_AVX512 1
#endif

namespace polysketch::cpu::PS_ISA {

// thetas: PositionThetas of the width (kernels/angles.h).
void Embed(Context& ctx, const PackedMatrix& embedding, const std::vector<float>& thetas,
           std::span<const int32_t> tokens, std::span<const int64_t> positions, float* out);
void LayerNorm(Context& ctx, const float* x, int64_t rows, int width, const NormWeights& norm,
               float* out);
// One thread's part of the same; used inside fused ops. x and out rows lie `x_row`, `out_row`
// floats apart.
void LayerNormRows(const float* x, int64_t x_row, int64_t rows, int width, const NormWeights& norm,
                   float* out, int64_t out_row);
void MatMul(Context& ctx, const float* x, int64_t rows, const PackedMatrix& w, const float* bias,
            bool accumulate, float* out);
// The same for q8 and q4 weights, and for bf16 weights by dot products; MatMul calls them.
void MatMulQ8(Context& ctx, const float* x, int64_t rows, const PackedMatrix& w, const float* bias,
              bool accumulate, float* out);
void MatMulQ4(Context& ctx, const float* x, int64_t rows, const PackedMatrix& w, const float* bias,
              bool accumulate, float* out);
void MatMulBf16(Context& ctx, const float* x, int64_t rows, const PackedMatrix& w,
                const float* bias, bool accumulate, float* out);
// Single-threaded product for tiles in cache: out [rows, out_row], whole panels of 32 columns are
// written. scratch: ConvertedBytes(rows, w.in()) bytes where activations are converted (q8 and q4
// weights; bf16 weights with dot products), otherwise unused.
void MatMulRows(const ProductUnits& units, const float* x, int64_t x_row, int rows,
                const PackedMatrix& w, uint8_t* scratch, float* out, int64_t out_row);
void MatMulRowsQ8(TileUnit tiles, const float* x, int64_t x_row, int rows, const PackedMatrix& w,
                  uint8_t* scratch, float* out, int64_t out_row);
void MatMulRowsQ4(const float* x, int64_t x_row, int rows, const PackedMatrix& w, uint8_t* scratch,
                  float* out, int64_t out_row);
void MatMulRowsBf16(const float* x, int64_t x_row, int rows, const PackedMatrix& w,
                    uint8_t* scratch, float* out, int64_t out_row);
// The product of gelu(x); x is overwritten, and holds zeros behind w.in() up to whole vectors.
void GeluMatMulRowsQ8(TileUnit tiles, float* x, int64_t x_row, int rows, const PackedMatrix& w,
                      uint8_t* scratch, float* out, int64_t out_row);
// Bytes of rows as products take them, enough for any format: whole blocks of rows of up to 16-bit
// elements, a scale for each row, a number for each group.
inline int64_t ConvertedBytes(int64_t rows, int64_t width) {
  const int64_t blocks = (rows + kTileBlock - 1) / kTileBlock * kTileBlock;
  const int64_t bytes = (2 * width + kTileRowBytes - 1) / kTileRowBytes * kTileRowBytes;
  return blocks * (bytes + 4 * Q4Groups(width) + 4);
}
// out[i] = gelu(x[i]), in place allowed.
void GeluArray(const float* x, int64_t size, float* out);
// cos_sin: [rows][head_dim] cosines then sines of each row's position.
void Rope(Context& ctx, const float* qkv, int64_t rows, const float* cos_sin, int heads,
          int head_dim, float* q, float* k);
void GeluGate(Context& ctx, const float* up, int64_t rows, int hidden, float* out);
void LearnedSketch(Context& ctx, const SketchNetwork& net, const float* x, int64_t rows,
                   float* out);
void ApplyRandomSketch(Context& ctx, const RandomSketch& sketch, const float* x, int64_t rows,
                       float* out);
void LinearFeatures(Context& ctx, const float* x, int64_t rows, int width, float* out);
void PerformerFeatures(Context& ctx, const PackedMatrix& omega, const float* x, int64_t rows,
                       float* out);
void Attention(Context& ctx, const AttentionSpec& spec, int layer,
               std::span<const Segment> segments, const AttentionInput& input, float* out);
void LogSumExp(Context& ctx, const float* x, int64_t rows, int64_t width, float* out);

}  // namespace polysketch::cpu::PS_ISA
