// The reference backend: the scalar oracle that every other backend is tested against, and readable
// as the definition of its ops. Never optimised.
#include "kernels/new_backend.h"
#include "kernels/reference/matrix.h"
#include "kernels/reference/ops.h"
#include "kernels/reference/state.h"

namespace polysketch {
namespace {

class ReferenceBackend final : public Backend {
 public:
  explicit ReferenceBackend(bool float64_state) : float64_state_(float64_state) {}

  std::string_view name() const override {
    return float64_state_ ? "reference/float64-state" : "reference";
  }
  int threads() const override { return 1; }

  std::unique_ptr<const Matrix> PackMatrix(const HostMatrix& w, bool transpose,
                                           DataType type) override {
    return reference::PackMatrix(w, transpose, type);
  }
  std::unique_ptr<SequenceState> NewState(const AttentionSpec& spec) override {
    return std::make_unique<reference::ReferenceState>(spec, float64_state_);
  }
  size_t StateBytes(const AttentionSpec& spec, int64_t tokens) const override {
    return reference::StateBytes(spec, tokens);
  }

  void Embed(const Matrix& embedding, std::span<const int32_t> tokens,
             std::span<const int64_t> positions, float* out) override {
    reference::Embed(embedding, tokens, positions, out);
  }
  void LayerNorm(const float* x, int64_t rows, int width, const NormWeights& norm,
                 float* out) override {
    reference::LayerNorm(x, rows, width, norm, out);
  }
  void MatMul(const float* x, int64_t rows, const Matrix& w, const float* bias, bool accumulate,
              float* out) override {
    reference::MatMul(x, rows, w, bias, accumulate, out);
  }
  void Rope(const float* qkv, std::span<const int64_t> positions, int heads, int head_dim, float* q,
            float* k) override {
    reference::Rope(qkv, positions, heads, head_dim, q, k);
  }
  void GeluGate(const float* up, int64_t rows, int hidden, float* out) override {
    reference::GeluGate(up, rows, hidden, out);
  }
  void LearnedSketch(const SketchNetwork& net, const float* x, int64_t rows, float* out) override {
    reference::LearnedSketch(net, x, rows, out);
  }
  void ApplyRandomSketch(const RandomSketch& sketch, const float* x, int64_t rows,
                         float* out) override {
    reference::ApplyRandomSketch(sketch, x, rows, out);
  }
  void LinearFeatures(const float* x, int64_t rows, int width, float* out) override {
    reference::LinearFeatures(x, rows, width, out);
  }
  void PerformerFeatures(const Matrix& omega, const float* x, int64_t rows, float* out) override {
    reference::PerformerFeatures(omega, x, rows, out);
  }
  void Attention(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                 const AttentionInput& input, float* out) override {
    reference::Attention(spec, layer, segments, input, out);
  }
  void LogSumExp(const float* x, int64_t rows, int64_t width, float* out) override {
    reference::LogSumExp(x, rows, width, out);
  }

 private:
  const bool float64_state_;
};

}  // namespace

std::unique_ptr<Backend> NewReferenceBackend(bool float64_state) {
  return std::make_unique<ReferenceBackend>(float64_state);
}

}  // namespace polysketch
