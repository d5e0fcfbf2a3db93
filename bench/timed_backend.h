// A backend that measures another one, so that the run of a whole model shows where its time goes:
// it times every op and counts the work that the op's definition requires. It waits for each op of
// a device, and records no steps.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/forwarding_backend.h"

namespace polysketch::bench {

// What limits an op: the ceiling that it is compared with.
enum class OpClass { kF32, kBf16, kInt8, kMemory };

struct OpTotals {
  std::string op;  // "matmul 768x2304 q8", "attention", ...
  OpClass kind = OpClass::kMemory;
  int64_t calls = 0;
  double seconds = 0;
  double flop = 0;   // useful operations (a multiply-add is two)
  double bytes = 0;  // weights and states that the calls read
};

class TimedBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  // Totals since the last Restart, longest time first.
  std::vector<OpTotals> Totals() const;
  void Restart() { totals_.clear(); }

  void Embed(const Matrix& embedding, std::span<const int32_t> tokens,
             std::span<const int64_t> positions, float* out) override;
  void Norm(const float* x, int64_t rows, int width, const NormWeights& norm, float* out) override;
  void MatMul(const float* x, int64_t rows, const Matrix& w, const float* bias, bool accumulate,
              float* out) override;
  void Rope(const float* qkv, std::span<const int64_t> positions, const HeadShape& shape,
            std::span<const float> thetas, float* q, float* k) override;
  void Gate(GateKind gate, const float* up, int64_t rows, int hidden, float* out) override;
  // Fused ops: as their parts on backends of the host, which fuse Mlp alone. AttentionMatMul and
  // MixedSketchAttention are their parts on every backend, to show each: on a device the rows that
  // pass between them are floats then.
  void NormMatMul(const float* x, int64_t rows, const NormWeights& norm, const Matrix& w,
                  const float* bias, float* normed, float* out) override;
  void Mlp(const MlpWeights& mlp, int64_t rows, float* x, float* scratch) override;
  void RopeAndNorms(const float* qkv, std::span<const int64_t> positions, const HeadShape& shape,
                    std::span<const float> thetas, const HeadNorms& norms, float* q, float* k,
                    float* normed_q, float* normed_k) override;
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
  void SampleRows(float* logits, int64_t width, std::span<const SampleQuery> queries,
                  std::span<SampleResult> answers) override;

 private:
  struct Work {
    OpClass kind = OpClass::kMemory;
    double flop = 0;
    double bytes = 0;
  };
  template <typename Fn>
  void Timed(std::string op, const Work& work, const Fn& fn);

  std::map<std::string, OpTotals> totals_;
};

}  // namespace polysketch::bench
