// A backend that measures another one: every op is forwarded, timed and counted with the work that
// its definition asks for, so that a whole-model run says where its time went. Of a device each op
// is waited for, and steps are not recorded.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace polysketch::bench {

// What limits an op, and thus which ceiling it is compared with.
enum class OpClass { kF32, kBf16, kInt8, kMemory };

struct OpTotals {
  std::string op;  // "matmul 768x2304 q8", "attention", ...
  OpClass kind = OpClass::kMemory;
  int64_t calls = 0;
  double seconds = 0;
  double flop = 0;   // useful operations (a multiply-add is two)
  double bytes = 0;  // weights and states that the calls had to read
};

class TimedBackend final : public Backend {
 public:
  explicit TimedBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  // Totals since the last Restart, longest first.
  std::vector<OpTotals> Totals() const;
  void Restart() { totals_.clear(); }

  std::string_view name() const override { return inner_->name(); }
  int threads() const override { return inner_->threads(); }
  ThreadPool* pool() override { return inner_->pool(); }
  Status status() const override { return inner_->status(); }
  bool host_memory() const override { return inner_->host_memory(); }
  float* NewArray(size_t size) override { return inner_->NewArray(size); }
  void DeleteArray(float* array) override { inner_->DeleteArray(array); }
  void CopyIn(const float* host, size_t size, float* array) override {
    inner_->CopyIn(host, size, array);
  }
  void CopyOut(const float* array, size_t size, float* host) override {
    inner_->CopyOut(array, size, host);
  }
  DeviceMemory device_memory() override { return inner_->device_memory(); }
  std::unique_ptr<const Matrix> PackMatrix(const HostMatrix& w, bool transpose,
                                           DataType type) override {
    return inner_->PackMatrix(w, transpose, type);
  }
  std::unique_ptr<SequenceState> NewState(const AttentionSpec& spec) override {
    return inner_->NewState(spec);
  }
  size_t StateBytes(const AttentionSpec& spec, int64_t tokens) const override {
    return inner_->StateBytes(spec, tokens);
  }

  void Embed(const Matrix& embedding, std::span<const int32_t> tokens,
             std::span<const int64_t> positions, float* out) override;
  void LayerNorm(const float* x, int64_t rows, int width, const NormWeights& norm,
                 float* out) override;
  void MatMul(const float* x, int64_t rows, const Matrix& w, const float* bias, bool accumulate,
              float* out) override;
  void Rope(const float* qkv, std::span<const int64_t> positions, int heads, int head_dim, float* q,
            float* k) override;
  void GeluGate(const float* up, int64_t rows, int hidden, float* out) override;
  void LearnedSketch(const SketchNetwork& net, const float* x, int64_t rows, float* out) override;
  void ApplyRandomSketch(const RandomSketch& sketch, const float* x, int64_t rows,
                         float* out) override;
  void LinearFeatures(const float* x, int64_t rows, int width, float* out) override;
  void PerformerFeatures(const Matrix& omega, const float* x, int64_t rows, float* out) override;
  void Attention(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                 const AttentionInput& input, float* out) override;
  void LogSumExp(const float* x, int64_t rows, int64_t width, float* out) override;
  bool samples_rows() const override { return inner_->samples_rows(); }
  void SampleRows(float* logits, int64_t width, std::span<const SampleQuery> queries,
                  std::span<SampleResult> answers) override;
  void Wait() override { inner_->Wait(); }

 private:
  struct Work {
    OpClass kind = OpClass::kMemory;
    double flop = 0;
    double bytes = 0;
  };
  template <typename Fn>
  void Timed(std::string op, const Work& work, const Fn& fn);

  std::unique_ptr<Backend> inner_;
  std::map<std::string, OpTotals> totals_;
};

}  // namespace polysketch::bench
