// The reference backend: scalar, readable as the definition of each op, never optimised. The other
// backends are tested against it.
//
// Sums and transcendental functions are computed in float64 and rounded to float32 once, at the end
// of an op. The error against the exact value is that one rounding, so a test's tolerance is the
// error bound of the kernel under test alone.
#pragma once

#include "kernels/backend.h"

namespace polysketch::reference {

// Each op is defined in the file of its name.
class ReferenceBackend final : public Backend {
 public:
  explicit ReferenceBackend(bool float64_state) : float64_state_(float64_state) {}

  std::string_view name() const override {
    return float64_state_ ? "reference/float64-state" : "reference";
  }
  int threads() const override { return 1; }

  std::unique_ptr<const Matrix> PackMatrix(const HostMatrix& w, bool transpose,
                                           DataType type) override;
  std::unique_ptr<SequenceState> NewState(std::span<const AttentionSpec> layers) override;
  size_t StateBytes(std::span<const AttentionSpec> layers, int64_t tokens) const override;

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
  const bool float64_state_;
};

}  // namespace polysketch::reference
