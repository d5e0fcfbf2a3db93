// The ops of the cuda backend, one file each. Shapes and meaning: kernels/backend.h; every pointer
// is a device pointer.
//
// Numbers: a row's result is one fixed sequence of operations here too. Sums inside a row are
// divided among lanes in one way and joined by a fixed tree; products run over k in order;
// contraction is off (-fmad=false) and fused operations are written as such, so that two kernels
// which share a formula share its bits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/dense.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/matrix.h"

namespace polysketch::cuda {

// Device memory that ops of a step use and then leave; grown to the largest step.
struct Workspace {
  DeviceArray<float> floats[4];
  DeviceArray<uint16_t> halves;
  DeviceArray<int8_t> bytes;
};

struct Context {
  Device* device;
  std::unique_ptr<DenseLibrary> library;  // may be null
  Workspace work;
};

// thetas [width / 2]: kernels/angles.h.
void Embed(Context& ctx, const CudaMatrix& embedding, const int32_t* tokens,
           const int64_t* positions, int64_t rows, const float* thetas, float* out);
void LayerNorm(Context& ctx, const float* x, int64_t rows, int width, const NormWeights& norm,
               float* out);
void MatMul(Context& ctx, const float* x, int64_t rows, const CudaMatrix& w, const float* bias,
            bool accumulate, float* out);
// Cosines and sines of each row's position, [rows][head_dim]: all cosines, then all sines.
void Angles(Context& ctx, const int64_t* positions, int64_t rows, int head_dim, const float* thetas,
            float* cos_sin);
void Rope(Context& ctx, const float* qkv, int64_t rows, const float* cos_sin, int heads,
          int head_dim, float* q, float* k);
void GeluGate(Context& ctx, const float* up, int64_t rows, int hidden, float* out);
void LearnedSketch(Context& ctx, const SketchNetwork& net, const float* x, int64_t rows,
                   float* out);
void ApplyRandomSketch(Context& ctx, const RandomSketch& sketch, const float* x, int64_t rows,
                       float* out);
void LinearFeatures(Context& ctx, const float* x, int64_t rows, int width, float* out);
void PerformerFeatures(Context& ctx, const CudaMatrix& omega, const float* x, int64_t rows,
                       float* out);
void LogSumExp(Context& ctx, const float* x, int64_t rows, int64_t width, float* out);

// SampleRows: its memory on both sides.
struct SampleMemory {
  DeviceArray<uint8_t> queries, answers;
  std::vector<uint8_t> host_queries, host_answers;
};
void ReserveSampling(Context& ctx, SampleMemory* memory);
void SampleRows(Context& ctx, SampleMemory* memory, float* logits, int64_t width,
                std::span<const SampleQuery> queries, std::span<SampleResult> answers);

inline const CudaMatrix& Cast(const Matrix& matrix) {
  return static_cast<const CudaMatrix&>(matrix);
}

}  // namespace polysketch::cuda
