// The model that computes every frame: a decoder that its ModelSpec describes. Other folders see
// FolderModel. docs/attention.md holds the equations.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/model/folder_model.h"
#include "engine/model/model_spec.h"
#include "engine/model/weights.h"
#include "kernels/backend.h"

namespace polysketch {

class DecoderModel final : public FolderModel {
 public:
  DecoderModel(ModelSpec spec, const LoadOptions& options, Backend* backend,
               std::unique_ptr<ModelWeights> weights);
  ~DecoderModel() override;

  // Bytes of the activations of a step of `tokens` tokens.
  static size_t WorkspaceBytes(const ModelSpec& spec, int tokens);

  const ModelSpec& spec() const override { return spec_; }
  std::span<const AttentionSpec> attention() const override { return attention_; }
  int64_t weight_bytes() const override { return weights_->bytes; }
  int64_t parameters() const override { return weights_->parameters; }
  int vocab_size() const override { return static_cast<int>(weights_->output->out()); }
  int hidden_size() const override { return spec_.frame.width; }
  int max_step_tokens() const override { return max_step_tokens_; }
  void Step(const Batch& batch, float* hidden) override;
  void Logits(const float* hidden, int64_t rows, float* logits) override;
  void LogSumExp(const float* logits, int64_t rows, float* out) override;
  void SampleRows(int64_t first, std::span<const SampleQuery> queries,
                  std::span<SampleResult> results, float* logits, float* log_sum_exp) override;
  std::vector<int> FarHeads() const override;
  std::unique_ptr<SequenceState> NewState() override;
  // States in host memory share nothing.
  bool makes_states_beside_steps() const override { return backend_->host_memory(); }
  size_t StateBytes(int64_t tokens) const override {
    return backend_->StateBytes(attention_, tokens);
  }
  double KeysRead(int64_t position) const override;
  void Reserve(int sequences, size_t growing) override;
  bool host_memory() const override { return backend_->host_memory(); }
  bool samples_rows() const override { return backend_->samples_rows(); }
  ThreadPool* pool() override { return backend_->pool(); }
  Status status() const override { return backend_->status(); }

 private:
  struct Workspace;

  // --- parts of a step; activations are in the workspace ---
  void Embed();
  void Layer(int i);
  // Where the attention of a layer writes the far masses of its queries, or null.
  float* NextFarMass(const AttentionSpec& attention);
  // What the attention of learned_sketch_mixed takes.
  MixedSketchInput MixedSketch(const AttentionSpec& attention, const LayerWeights& w,
                               std::span<const float> thetas);
  HeadInput Heads(const AttentionSpec& attention, const LayerWeights& w,
                  std::span<const float> thetas);
  // Queries and keys that the attention of any other kind compares, from qkv.
  AttentionInput QueriesAndKeys(const AttentionSpec& attention, const LayerWeights& w,
                                std::span<const float> thetas);
  // Sketches or feature maps of x [rows, d], queries and then as many keys, to the workspace.
  void FarFeatures(const AttentionSpec& attention, const LayerWeights& w, const float* x,
                   int64_t rows);
  void RandomMixedFeatures(const AttentionSpec& attention, const LayerWeights& w, const float* x,
                           int64_t rows);
  void FarMaps(const AttentionSpec& attention, const LayerWeights& w, AttentionInput* input);
  void AffineFeatures(const AttentionSpec& attention, const LayerWeights& w, const float* x,
                      int64_t rows);
  // The final norm of `rows`, ascending, to out [rows, D].
  void NormOutputRows(std::span<const int64_t> rows, float* out);
  // The final norm of rows [first, first + count) to out [count, D].
  void FinalNorm(int64_t first, int64_t count, float* out);
  // logits [rows, vocab_size] of hidden rows, both in the backend's memory.
  void ProjectToVocabulary(const float* hidden, int64_t rows, float* logits);

  // --- host memory that ops cannot access is copied ---

  // Makes `array` at least `size` elements long, and returns its data. Growing loses the contents.
  float* Grow(int64_t size, BackendArray* array);
  // `host`, or its copy in the backend's memory.
  const float* InputOf(const float* host, int64_t size);
  // `host`, or an array of the backend's memory that CopyToHost copies to `host`.
  float* OutputFor(float* host, int64_t size);
  void CopyToHost(const float* out, int64_t size, float* host);

  const ModelSpec spec_;
  const std::vector<AttentionSpec> attention_;  // of spec_
  const int max_step_tokens_;
  Backend* const backend_;
  const std::unique_ptr<ModelWeights> weights_;
  const std::unique_ptr<Workspace> space_;
  BackendArray staged_input_, staged_output_;  // empty with host_memory()
  // The batch of the current step.
  std::span<const int32_t> tokens_;
  std::span<const int64_t> positions_;
  std::span<const Segment> segments_;
  float* far_mass_ = nullptr;  // of the next layer; null: not wanted
};

}  // namespace polysketch
