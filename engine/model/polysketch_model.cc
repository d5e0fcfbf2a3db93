// The forward pass of a PolySketchFormer (../shared/design/model.md): a layer is one page of op
// calls.
#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/model/attention_spec_of.h"
#include "engine/model/model.h"
#include "engine/model/weights.h"

namespace polysketch {
namespace {

// Activations of one step of at most `tokens` tokens, in the backend's memory.
struct Workspace {
  Workspace(Backend* backend, const ModelConfig& config, const AttentionSpec& spec,
            int64_t tokens) {
    const int64_t D = config.emb_dim, h = config.mlp_hidden();
    const int64_t sketches = 2 * int64_t{spec.heads} * spec.far_dim();
    const int64_t attention = 3 * D + 2 * D + sketches + D, mlp = 2 * h + h;
    memory =
        BackendArray(backend, static_cast<size_t>(tokens * (2 * D + std::max(attention, mlp))));
    x = memory.data();
    normed = x + tokens * D;
    // The attention's and the MLP's activations are never alive at the same time.
    qkv = normed + tokens * D;
    qk = qkv + tokens * 3 * D;
    sketch = qk + tokens * 2 * D;
    attended = sketch + tokens * sketches;
    up = normed + tokens * D;
    gated = up + tokens * 2 * h;
  }

  BackendArray memory;
  float* x;         // [M, D]: the residual stream
  float* normed;    // [M, D]
  float* qkv;       // [M, 3D]
  float* qk;        // [2, M, H, d]: q, then k, so that one call sketches both
  float* sketch;    // [2, M, H, far_dim]
  float* attended;  // [M, D]
  float* up;        // [M, 2h]
  float* gated;     // [M, h]
};

StateFormat FormatFor(const ModelWeights& weights) {
  return weights.embedding().type() == DataType::kF32 ? StateFormat::kF32 : StateFormat::kBf16;
}

// Calls visit(first, end) for each run of rows [first, end) that `joins` an element to the one
// before it.
template <typename Joins, typename Visit>
void ForRuns(size_t count, const Joins& joins, const Visit& visit) {
  for (size_t first = 0, end; first < count; first = end) {
    for (end = first + 1; end < count && joins(end); ++end) {
    }
    visit(first, end);
  }
}

class PolysketchModelImpl final : public PolysketchModel {
 public:
  PolysketchModelImpl(ModelConfig config, const LoadOptions& options, Backend* backend,
                      std::unique_ptr<ModelWeights> weights)
      : config_(std::move(config)),
        spec_(AttentionSpecOf(config_, options.state_format.value_or(FormatFor(*weights)))),
        max_step_tokens_(options.max_step_tokens),
        backend_(backend),
        weights_(std::move(weights)),
        space_(backend, config_, spec_, max_step_tokens_) {}

  int vocab_size() const override { return config_.vocab_size; }
  int hidden_size() const override { return config_.emb_dim; }
  int max_step_tokens() const override { return max_step_tokens_; }
  std::unique_ptr<SequenceState> NewState() override { return backend_->NewState(spec_); }
  int64_t block() const override { return spec_.kv_cache() ? 0 : spec_.block; }
  bool states_at_start() const override { return !backend_->host_memory(); }
  size_t StateBytes(int64_t tokens) const override { return backend_->StateBytes(spec_, tokens); }
  Status status() const override { return backend_->status(); }
  const ModelConfig& config() const override { return config_; }
  const AttentionSpec& attention_spec() const override { return spec_; }
  int64_t weight_bytes() const override { return weights_->bytes(); }
  int64_t parameters() const override { return weights_->parameters(); }
  int64_t decode_step_bytes() const override;

  void Reserve(int sequences, size_t growing) override;

  void Step(const Batch& batch, float* hidden) override {
    const int64_t outputs = std::ssize(batch.output_rows());
    CheckTokens(batch.tokens());
    tokens_ = batch.tokens();
    positions_ = batch.positions();
    segments_ = batch.segments();
    float* packed = backend_->host_memory() ? hidden : space_.normed;
    // Decoding: every row is an output. Elsewhere the rows of the final norm differ from step to
    // step.
    const int64_t variant = outputs == std::ssize(tokens_) ? 0 : -1;
    const StepInput step{this, &spec_, tokens_, positions_, segments_, variant};
    backend_->RunStep(step, [&] {
      backend_->Embed(weights_->embedding(), tokens_, positions_, space_.x);
      for (int i = 0; i < config_.num_layers; ++i) Layer(i);
      NormOutputRows(batch.output_rows(), packed);
    });
    if (hidden == nullptr) {
      backend_->Wait();  // so that whoever measures a step measures it all
    } else if (packed != hidden) {
      backend_->CopyOut(packed, static_cast<size_t>(outputs * config_.emb_dim), hidden);
    }
    for (const Segment& segment : segments_) segment.state->Advance(segment.rows);
  }

  void Logits(const float* hidden, int64_t rows, float* logits) override {
    const float* from = Staged(hidden, rows * config_.emb_dim, &staged_in_);
    float* to = backend_->host_memory() ? logits : Room(rows * config_.vocab_size, &staged_out_);
    backend_->MatMul(from, rows, weights_->embedding(), weights_->softmax_bias(),
                     /*accumulate=*/false, to);
    if (to != logits) backend_->CopyOut(to, rows * config_.vocab_size, logits);
  }

  bool samples() const override { return backend_->samples_rows(); }
  void Sample(int64_t first, std::span<const SampleQuery> queries, std::span<SampleResult> results,
              float* logits, float* log_sum_exp) override;

  ThreadPool* pool() override { return backend_->pool(); }
  void LogSumExp(const float* logits, int64_t rows, float* out) override {
    const float* from = Staged(logits, rows * config_.vocab_size, &staged_in_);
    float* to = backend_->host_memory() ? out : Room(rows, &staged_out_);
    backend_->LogSumExp(from, rows, config_.vocab_size, to);
    if (to != out) backend_->CopyOut(to, rows, out);
  }

 private:
  void CheckTokens(std::span<const int32_t> tokens) const {
    PS_CHECK(tokens.size() <= static_cast<size_t>(max_step_tokens_)) << tokens.size();
    for (const int32_t token : tokens) {
      PS_CHECK(token >= 0 && token < config_.vocab_size) << "token " << token;
    }
  }

  void Layer(int i) {
    const LayerWeights& w = weights_->layer(i);
    const int64_t M = static_cast<int64_t>(tokens_.size());
    const int D = config_.emb_dim, h = config_.mlp_hidden();
    Backend& ops = *backend_;
    ops.LayerNorm(space_.x, M, D, w.attn_norm, space_.normed);
    ops.MatMul(space_.normed, M, *w.qkv, nullptr, /*accumulate=*/false, space_.qkv);
    ops.Attention(spec_, i, segments_, QueriesAndKeys(w), space_.attended);
    ops.MatMul(space_.attended, M, *w.out, nullptr, /*accumulate=*/true, space_.x);

    ops.LayerNorm(space_.x, M, D, w.mlp_norm, space_.normed);
    ops.MatMul(space_.normed, M, *w.up, nullptr, /*accumulate=*/false, space_.up);
    ops.GeluGate(space_.up, M, h, space_.gated);
    ops.MatMul(space_.gated, M, *w.down, nullptr, /*accumulate=*/true, space_.x);
  }

  // From qkv to what the attention of this kind compares.
  AttentionInput QueriesAndKeys(const LayerWeights& w) {
    const int64_t M = static_cast<int64_t>(tokens_.size());
    const int64_t rows = M * spec_.heads;  // of queries; as many of keys
    const int d = spec_.head_dim;
    Backend& ops = *backend_;
    float* q = space_.qk;
    float* k = q + rows * d;
    ops.Rope(space_.qkv, positions_, spec_.heads, d, q, k);
    if (config_.has_qk_norm() && !spec_.mixed()) ops.LayerNorm(q, 2 * rows, d, w.qk_norm, q);

    AttentionInput input;
    input.v = space_.qkv + 2 * config_.emb_dim;
    input.v_stride = 3 * config_.emb_dim;
    if (!spec_.kv_cache()) {
      FarFeatures(w, q, 2 * rows);
      input.far_q = space_.sketch;
      input.far_k = space_.sketch + rows * spec_.far_dim();
    }
    if (spec_.mixed()) {
      ops.LayerNorm(q, rows, d, w.near_q_norm, q);
      ops.LayerNorm(k, rows, d, w.near_k_norm, k);
    }
    const bool near_is_far = !spec_.kv_cache() && !spec_.mixed();
    input.near_q = near_is_far ? input.far_q : q;
    input.near_k = near_is_far ? input.far_k : k;
    return input;
  }

  // Sketches or feature maps of rows of queries and keys, to space_.sketch.
  void FarFeatures(const LayerWeights& w, const float* x, int64_t rows) {
    const int d = spec_.head_dim;
    Backend& ops = *backend_;
    switch (spec_.kind) {
      case AttentionKind::kLearnedSketch:
      case AttentionKind::kLearnedSketchMixed:
        ops.LearnedSketch(w.network, x, rows, space_.sketch);
        return;
      case AttentionKind::kRandomSketch:
        ops.ApplyRandomSketch(w.random_sketch, x, rows, space_.sketch);
        return;
      case AttentionKind::kRandomSketchMixed:
        RandomMixed(w, x, rows);
        return;
      case AttentionKind::kLinear:
        ops.LinearFeatures(x, rows, d, space_.sketch);
        return;
      case AttentionKind::kPerformer:
        ops.PerformerFeatures(*w.omega, x, rows, space_.sketch);
        return;
      case AttentionKind::kSoftmax:
      case AttentionKind::kPolynomial:
        break;
    }
    PS_CHECK(false) << "no far part: " << AttentionKindName(spec_.kind);
  }

  // The sketch sees q' and k', the near part its own norms of q and k: so q' (then k') is made
  // aside, in the place of the attention's output, which is written later.
  void RandomMixed(const LayerWeights& w, const float* x, int64_t rows) {
    const int d = spec_.head_dim;
    const int64_t half = rows / 2;
    for (int part = 0; part < 2; ++part) {
      backend_->LayerNorm(x + part * half * d, half, d, w.qk_norm, space_.attended);
      backend_->ApplyRandomSketch(w.random_sketch, space_.attended, half,
                                  space_.sketch + part * half * spec_.far_dim());
    }
  }

  // The final norm of `rows`, ascending, to packed [rows, emb_dim], which may be space_.normed:
  // nothing else needs that any more.
  void NormOutputRows(std::span<const int64_t> rows, float* packed) {
    const int D = config_.emb_dim;
    const auto next = [&](size_t i) { return rows[i] == rows[i - 1] + 1; };
    ForRuns(rows.size(), next, [&](size_t first, size_t end) {
      backend_->LayerNorm(space_.x + rows[first] * D, static_cast<int64_t>(end - first), D,
                          weights_->final_norm(), packed + static_cast<int64_t>(first) * D);
    });
  }

  // An array of at least `size`.
  float* Room(int64_t size, BackendArray* array) {
    if (array->size() < static_cast<size_t>(size)) {
      *array = BackendArray();
      *array = BackendArray(backend_, static_cast<size_t>(size));
    }
    return array->data();
  }

  // A host array as the ops can read it.
  const float* Staged(const float* host, int64_t size, BackendArray* array) {
    if (backend_->host_memory()) return host;
    float* staged = Room(size, array);
    backend_->CopyIn(host, static_cast<size_t>(size), staged);
    return staged;
  }

  const ModelConfig config_;
  const AttentionSpec spec_;
  const int max_step_tokens_;
  Backend* backend_;
  std::unique_ptr<ModelWeights> weights_;
  Workspace space_;
  BackendArray staged_in_, staged_out_;  // of Logits and LogSumExp, where memory is not the host's
  // The batch of the current step.
  std::span<const int32_t> tokens_;
  std::span<const int64_t> positions_;
  std::span<const Segment> segments_;
};

void PolysketchModelImpl::Reserve(int sequences, size_t growing) {
  if (backend_->host_memory()) return;
  const auto step = static_cast<size_t>(max_step_tokens_);
  constexpr auto kRows = static_cast<int64_t>(SampleQuery::kMaxRows);
  const std::vector<int32_t> tokens(step, 0);
  const std::vector<int64_t> positions(step, 0);
  tokens_ = tokens;
  positions_ = positions;
  segments_ = {};
  Room(kRows * config_.vocab_size, &staged_in_);  // for logits of the host
  float* logits = Room(kRows * config_.vocab_size, &staged_out_);
  backend_->Reserve(spec_, max_step_tokens_, sequences, growing, [&] {
    backend_->Embed(weights_->embedding(), tokens_, positions_, space_.x);
    Layer(0);  // as any other
    backend_->MatMul(space_.normed, std::min<int64_t>(kRows, max_step_tokens_),
                     weights_->embedding(), weights_->softmax_bias(), /*accumulate=*/false, logits);
  });
}

void PolysketchModelImpl::Sample(int64_t first, std::span<const SampleQuery> queries,
                                 std::span<SampleResult> results, float* logits,
                                 float* log_sum_exp) {
  const int64_t D = config_.emb_dim, V = config_.vocab_size, count = std::ssize(queries);
  float* on_device = Room(count * V, &staged_out_);
  backend_->MatMul(space_.normed + first * D, count, weights_->embedding(),
                   weights_->softmax_bias(), /*accumulate=*/false, on_device);
  if (log_sum_exp != nullptr) {
    float* sums = Room(count, &staged_in_);
    backend_->LogSumExp(on_device, count, V, sums);
    backend_->CopyOut(sums, queries.size(), log_sum_exp);
  }
  backend_->SampleRows(on_device, V, queries, results);
  const auto needs_logits = [&](size_t i) {
    return results[i].kind == SampleResult::Kind::kNone ||
           results[i].kind == SampleResult::Kind::kTooMany;
  };
  const auto alike = [&](size_t i) { return needs_logits(i) == needs_logits(i - 1); };
  ForRuns(results.size(), alike, [&](size_t begin, size_t end) {
    if (!needs_logits(begin)) return;
    const int64_t offset = static_cast<int64_t>(begin) * V;
    backend_->CopyOut(on_device + offset, (end - begin) * static_cast<size_t>(V), logits + offset);
  });
}

int64_t PolysketchModelImpl::decode_step_bytes() const {
  const int64_t heads = int64_t{spec_.layers} * spec_.heads;
  const int64_t far = spec_.kv_cache() ? 0 : spec_.FarReadBytes();
  return weights_->bytes() + heads * (far + spec_.NearReadBytes(spec_.block / 2));
}

}  // namespace

Result<std::unique_ptr<PolysketchModel>> PolysketchModel::Load(const std::string& folder,
                                                               Backend* backend,
                                                               const LoadOptions& options) {
  PS_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::Load(folder));
  Checkpoint::ProgressFn progress;
  if (options.progress) {
    progress = [&](uint64_t done, uint64_t total) {
      options.progress(static_cast<int64_t>(done), static_cast<int64_t>(total));
    };
  }
  PS_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(folder, progress));
  PS_ASSIGN_OR_RETURN(std::unique_ptr<ModelWeights> weights,
                      ModelWeights::Load(&checkpoint, config, backend, options.weights));
  std::unique_ptr<PolysketchModel> model = std::make_unique<PolysketchModelImpl>(
      std::move(config), options, backend, std::move(weights));
  return model;
}

}  // namespace polysketch
