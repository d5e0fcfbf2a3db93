// The cpu backend for one instruction set. The op files, which define its member functions, are
// compiled once for each set (isa_begin.inc), so each set has a class of its own in its namespace.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/page_arena.h"
#include "kernels/angles.h"
#include "kernels/backend.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/isa_name.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/cpu/state.h"

namespace polysketch::cpu::PS_ISA {

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, const ProductUnits& units) : context_(threads, units) {}

  std::string_view name() const override;
  int threads() const override { return context_.threads(); }
  ThreadPool* pool() override { return &context_.pool(); }

  std::unique_ptr<const Matrix> PackMatrix(const HostMatrix& w, bool transpose,
                                           DataType type) override {
    return std::make_unique<PackedMatrix>(w, transpose, type, &arena_);
  }
  std::unique_ptr<SequenceState> NewState(std::span<const AttentionSpec> layers) override {
    return std::make_unique<CpuState>(layers);
  }
  size_t StateBytes(std::span<const AttentionSpec> layers, int64_t tokens) const override {
    return cpu::StateBytes(layers, tokens);
  }

  void Embed(const Matrix& embedding, std::span<const int32_t> tokens,
             std::span<const int64_t> positions, float* out) override;
  void Norm(const float* x, int64_t rows, int width, const NormWeights& norm, float* out) override;
  void MatMul(const float* x, int64_t rows, const Matrix& w, const float* bias, bool accumulate,
              float* out) override;
  void Rope(const float* qkv, std::span<const int64_t> positions, const HeadShape& shape,
            std::span<const float> thetas, float* q, float* k) override;
  void RopeAndNorms(const float* qkv, std::span<const int64_t> positions, const HeadShape& shape,
                    std::span<const float> thetas, const HeadNorms& norms, float* q, float* k,
                    float* normed_q, float* normed_k) override;
  void Gate(GateKind gate, const float* up, int64_t rows, int hidden, float* out) override;
  void Mlp(const MlpWeights& mlp, int64_t rows, float* x, float* scratch) override;
  void LearnedSketch(const SketchNetwork& net, const float* x, int64_t rows, float* out) override;
  void ApplyRandomSketch(const RandomSketch& sketch, const float* x, int64_t rows,
                         float* out) override;
  void LinearFeatures(const float* x, int64_t rows, int width, const float* factors, int heads,
                      float* out) override;
  void PerformerFeatures(const Matrix& omega, const float* x, int64_t rows, float* out) override;
  void AffineFeatures(const float* x, int64_t rows, int width, const float* terms, int heads,
                      float* out) override;
  void HeadMaps(const float* x, int64_t rows, int heads, int width, const float* maps,
                const float* biases, int size, float* out) override;
  void Attention(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                 const AttentionInput& input, float* out) override;
  void LogSigmoid(const float* x, int64_t size, float* out) override;
  void LogSumExp(const float* x, int64_t rows, int64_t width, float* out) override;

 private:
  // Computes cos_sin_, unless it belongs to these positions and thetas already: a sine and a cosine
  // in float64 are slow, and every layer of a step rotates by the same angles.
  void UpdateAngles(std::span<const int64_t> positions, std::span<const float> thetas);
  // Rope of `heads` neighbouring heads x [heads, head_dim] of a token, after UpdateAngles; without
  // a rotation if `rotates` is false.
  void RotateHeads(const float* x, int64_t token, int heads, int head_dim, bool rotates,
                   float* out) const;

  Context context_;
  PageArena arena_;  // of packed matrices
  std::optional<Rotations> embed_rotations_, rope_rotations_;
  std::vector<int64_t> angle_positions_;  // of cos_sin_, whose thetas are those of rope_rotations_
  std::vector<float> cos_sin_;            // [rows][head_dim]: cosines, then sines
};

}  // namespace polysketch::cpu::PS_ISA
