// The base of backends that wrap another one.
#pragma once

#include <memory>
#include <utility>

#include "kernels/backend.h"

namespace polysketch {

// Forwards every call to `inner`, except the ops of a forward pass: a wrapper exists to change
// those, and a new op must not pass it unnoticed. RunStep calls the ops of this backend.
class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return inner_->name(); }
  int threads() const override { return inner_->threads(); }
  ThreadPool* pool() override { return inner_->pool(); }
  Status status() const override { return inner_->status(); }
  bool has_state_format(StateFormat format) const override {
    return inner_->has_state_format(format);
  }
  bool host_memory() const override { return inner_->host_memory(); }
  float* NewArray(size_t size) override { return inner_->NewArray(size); }
  void DeleteArray(float* array) override { inner_->DeleteArray(array); }
  void CopyIn(const float* host, size_t size, float* array) override {
    inner_->CopyIn(host, size, array);
  }
  void CopyOut(const float* array, size_t size, float* host) override {
    inner_->CopyOut(array, size, host);
  }
  std::unique_ptr<const Matrix> PackMatrix(const HostMatrix& w, bool transpose,
                                           DataType type) override {
    return inner_->PackMatrix(w, transpose, type);
  }
  std::unique_ptr<SequenceState> NewState(std::span<const AttentionSpec> layers) override {
    return inner_->NewState(layers);
  }
  size_t StateBytes(std::span<const AttentionSpec> layers, int64_t tokens) const override {
    return inner_->StateBytes(layers, tokens);
  }
  int64_t ReadBytes(const AttentionSpec& spec, int64_t tokens) const override {
    return inner_->ReadBytes(spec, tokens);
  }
  void Reserve(std::span<const AttentionSpec> layers, int64_t rows, int64_t segments,
               size_t kv_bytes, const std::function<void()>& ops) override {
    inner_->Reserve(layers, rows, segments, kv_bytes, ops);
  }
  DeviceMemory device_memory() override { return inner_->device_memory(); }
  // Ops that not every backend has: a wrapper defines them all the same.
  void LogSigmoid(const float* x, int64_t size, float* out) override = 0;
  void HeadMaps(const float* x, int64_t rows, int heads, int width, const float* maps,
                const float* biases, int size, float* out) override = 0;
  void Wait() override { inner_->Wait(); }
  bool samples_rows() const override { return inner_->samples_rows(); }
  void SampleRows(float* logits, int64_t width, std::span<const SampleQuery> queries,
                  std::span<SampleResult> answers) override {
    inner_->SampleRows(logits, width, queries, answers);
  }

 protected:
  Backend& inner() { return *inner_; }

 private:
  const std::unique_ptr<Backend> inner_;
};

}  // namespace polysketch
