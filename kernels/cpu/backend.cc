// The cpu backend of one instruction set: checks shapes, keeps the context, calls the ops.
#include <algorithm>

#include "base/check.h"
#include "kernels/angles.h"
#include "kernels/backend.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/state.h"

namespace polysketch::cpu::PS_ISA {
namespace {

#define PS_STRING_INNER(x) #x
#define PS_STRING(x) PS_STRING_INNER(x)

const PackedMatrix& Packed(const Matrix& w) { return static_cast<const PackedMatrix&>(w); }

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, const ProductUnits& units) : ctx_(threads, units) {}

  std::string_view name() const override {
    if (ctx_.units().bf16_dots) return "cpu/avx512bf16";
    switch (ctx_.units().tiles) {
      case TileUnit::kAmx:
        return "cpu/avx512amx";
      case TileUnit::kTwin:
        return "cpu/avx512amxtwin";
      case TileUnit::kNone:
        break;
    }
    return "cpu/" PS_STRING(PS_ISA);
  }
  int threads() const override { return ctx_.threads(); }
  ThreadPool* pool() override { return &ctx_.pool(); }

  std::unique_ptr<const Matrix> PackMatrix(const HostMatrix& w, bool transpose,
                                           DataType type) override {
    return std::make_unique<PackedMatrix>(w, transpose, type, &arena_);
  }
  std::unique_ptr<SequenceState> NewState(const AttentionSpec& spec) override {
    return cpu::NewState(spec);
  }
  size_t StateBytes(const AttentionSpec& spec, int64_t tokens) const override {
    return cpu::StateBytes(spec, tokens);
  }

  void Embed(const Matrix& embedding, std::span<const int32_t> tokens,
             std::span<const int64_t> positions, float* out) override {
    PS_CHECK(tokens.size() == positions.size());
    // Powers in float64, which a decode step would notice.
    if (position_thetas_.size() != static_cast<size_t>(embedding.in() / 2)) {
      position_thetas_ = PositionThetas(static_cast<int>(embedding.in()));
    }
    PS_ISA::Embed(ctx_, Packed(embedding), position_thetas_, tokens, positions, out);
  }
  void LayerNorm(const float* x, int64_t rows, int width, const NormWeights& norm,
                 float* out) override {
    PS_ISA::LayerNorm(ctx_, x, rows, width, norm, out);
  }
  void MatMul(const float* x, int64_t rows, const Matrix& w, const float* bias, bool accumulate,
              float* out) override {
    PS_ISA::MatMul(ctx_, x, rows, Packed(w), bias, accumulate, out);
  }
  void Rope(const float* qkv, std::span<const int64_t> positions, int heads, int head_dim, float* q,
            float* k) override {
    UpdateAngles(positions, head_dim);
    PS_ISA::Rope(ctx_, qkv, static_cast<int64_t>(positions.size()), cos_sin_.data(), heads,
                 head_dim, q, k);
  }
  void GeluGate(const float* up, int64_t rows, int hidden, float* out) override {
    PS_ISA::GeluGate(ctx_, up, rows, hidden, out);
  }
  void LearnedSketch(const SketchNetwork& net, const float* x, int64_t rows, float* out) override {
    PS_ISA::LearnedSketch(ctx_, net, x, rows, out);
  }
  void ApplyRandomSketch(const RandomSketch& sketch, const float* x, int64_t rows,
                         float* out) override {
    PS_ISA::ApplyRandomSketch(ctx_, sketch, x, rows, out);
  }
  void LinearFeatures(const float* x, int64_t rows, int width, float* out) override {
    PS_ISA::LinearFeatures(ctx_, x, rows, width, out);
  }
  void PerformerFeatures(const Matrix& omega, const float* x, int64_t rows, float* out) override {
    PS_ISA::PerformerFeatures(ctx_, Packed(omega), x, rows, out);
  }
  void Attention(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                 const AttentionInput& input, float* out) override {
    PS_CHECK(layer >= 0 && layer < spec.layers) << layer;
    PS_ISA::Attention(ctx_, spec, layer, segments, input, out);
  }
  void LogSumExp(const float* x, int64_t rows, int64_t width, float* out) override {
    PS_ISA::LogSumExp(ctx_, x, rows, width, out);
  }

 private:
  // Angles cost a sine and a cosine in float64 each; every layer of a step asks for the same
  // positions.
  void UpdateAngles(std::span<const int64_t> positions, int head_dim) {
    if (head_dim == angle_dim_ && std::equal(positions.begin(), positions.end(),
                                             angle_positions_.begin(), angle_positions_.end())) {
      return;
    }
    if (head_dim != angle_dim_) thetas_ = RopeThetas(head_dim);
    angle_dim_ = head_dim;
    angle_positions_.assign(positions.begin(), positions.end());
    cos_sin_.resize(positions.size() * head_dim);
    ctx_.ParallelRows(static_cast<int64_t>(positions.size()), 4,
                      [&](int64_t first, int64_t last, int) {
                        for (int64_t m = first; m < last; ++m) {
                          float* row = cos_sin_.data() + m * head_dim;
                          CosSin(thetas_, positions[m], row, row + head_dim / 2);
                        }
                      });
  }

  Context ctx_;
  PageArena arena_;  // of packed matrices
  std::vector<float> position_thetas_;
  int angle_dim_ = 0;
  std::vector<float> thetas_;
  std::vector<int64_t> angle_positions_;
  std::vector<float> cos_sin_;  // [rows][cosines, sines]
};

}  // namespace

std::unique_ptr<Backend> NewBackend(int threads, const ProductUnits& units) {
  return std::make_unique<CpuBackend>(threads, units);
}

}  // namespace polysketch::cpu::PS_ISA
