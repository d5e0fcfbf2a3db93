#include "engine/model/polysketch_model.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/memory_limit.h"
#include "kernels/angles.h"

namespace polysketch {
namespace {

StateFormat FormatFor(const ModelWeights& weights) {
  return weights.embedding().type() == DataType::kF32 ? StateFormat::kF32 : StateFormat::kBf16;
}

// Calls visit(first, end) for each maximal run [first, end) of elements i for which joins(i) holds,
// the first element of a run excepted.
template <typename Joins, typename Visit>
void ForRuns(size_t count, const Joins& joins, const Visit& visit) {
  for (size_t first = 0, end; first < count; first = end) {
    for (end = first + 1; end < count && joins(end); ++end) {
    }
    visit(first, end);
  }
}

// Steps of the same variant and number of rows have the same rows in the final norm: all rows, as
// in decoding, none, or the last one, as in chunks of a prompt. Other steps differ.
int64_t VariantOf(std::span<const int64_t> outputs, int64_t rows) {
  if (std::ssize(outputs) == rows) return 0;
  if (outputs.empty()) return 1;
  return outputs.size() == 1 && outputs[0] == rows - 1 ? 2 : -1;
}

}  // namespace

// Activations of one step of at most `tokens` tokens, in the backend's memory.
struct PolysketchModel::Workspace {
  Workspace(Backend* backend, const ModelConfig& config, const AttentionSpec& spec,
            int64_t tokens) {
    const int64_t D = config.emb_dim, h = config.mlp_hidden();
    const int64_t sketches = 2 * int64_t{spec.heads} * spec.far_dim();
    const int64_t gates = spec.decay_gate ? spec.heads : 0;
    const int64_t near = spec.mixed() ? 2 * D : 0;
    const int64_t attention = 3 * D + 2 * D + near + sketches + D + gates, mlp = 2 * h + h;
    memory =
        BackendArray(backend, static_cast<size_t>(tokens * (2 * D + std::max(attention, mlp))));
    x = memory.data();
    normed = x + tokens * D;
    // The activations of the attention and of the MLP are never live at the same time.
    qkv = normed + tokens * D;
    qk = qkv + tokens * 3 * D;
    near_qk = qk + tokens * 2 * D;
    sketch = near_qk + tokens * near;
    attended = sketch + tokens * sketches;
    log_decay = attended + tokens * D;
  }

  BackendArray memory;
  float* x;          // [M, D]: the residual stream
  float* normed;     // [M, D]; scratch of the MLP, [M, D + 3h]
  float* qkv;        // [M, 3D]
  float* qk;         // [2, M, H, d]: q, then k, so that one call sketches both
  float* near_qk;    // [2, M, H, d]: norms of qk; mixed kinds
  float* sketch;     // [2, M, H, far_dim]
  float* attended;   // [M, D]
  float* log_decay;  // [M, H]; with a decay gate
};

PolysketchModel::PolysketchModel(ModelConfig config, const LoadOptions& options, Backend* backend,
                                 std::unique_ptr<ModelWeights> weights)
    : config_(std::move(config)),
      spec_(config_.attention_spec(options.state_format.value_or(FormatFor(*weights)))),
      thetas_(RopeThetas(spec_.head_dim)),
      max_step_tokens_(options.max_step_tokens),
      backend_(backend),
      weights_(std::move(weights)),
      space_(std::make_unique<Workspace>(backend, config_, spec_, max_step_tokens_)) {}

PolysketchModel::~PolysketchModel() = default;

Result<std::unique_ptr<PolysketchModel>> PolysketchModel::Load(const ModelFolder& folder,
                                                               Backend* backend,
                                                               const LoadOptions& options) {
  PS_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::Load(folder));
  if (config.decay_gate && !backend->has(BackendFeature::kDecayGate)) {
    return FailedPrecondition(folder.PathOf("config.json"),
                              ": field \"decay_gate\": expected false on ", backend->name(),
                              ", which has no decay gate; found true");
  }
  if (options.state_format && !backend->has_state_format(*options.state_format)) {
    return FailedPrecondition("state format: expected one that ", backend->name(), " reads, found ",
                              StateFormatName(*options.state_format));
  }
  Checkpoint::ProgressFn progress;
  if (options.progress) {
    progress = [&](uint64_t done, uint64_t total) {
      options.progress(static_cast<int64_t>(done), static_cast<int64_t>(total));
    };
  }
  PS_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(folder, progress));
  PS_ASSIGN_OR_RETURN(std::unique_ptr<ModelWeights> weights,
                      ModelWeights::Load(&checkpoint, config, backend, options.weights));
  return std::unique_ptr<PolysketchModel>(
      new PolysketchModel(std::move(config), options, backend, std::move(weights)));
}

std::unique_ptr<SequenceState> PolysketchModel::NewState() {
  return MemoryFits(StateBytes(1)) ? backend_->NewState(spec_) : nullptr;
}

int64_t PolysketchModel::decode_step_bytes() const {
  const int64_t heads = int64_t{spec_.layers} * spec_.key_heads();
  const int64_t far = spec_.kv_cache() ? 0 : spec_.FarReadBytes();
  return weights_->bytes() + heads * (far + spec_.NearReadBytes(spec_.block / 2));
}

void PolysketchModel::Step(const Batch& batch, float* hidden) {
  tokens_ = batch.tokens();
  positions_ = batch.positions();
  segments_ = batch.segments();
  PS_CHECK(std::ssize(tokens_) <= max_step_tokens_) << tokens_.size();
  for (const int32_t token : tokens_) {
    PS_CHECK(token >= 0 && token < config_.vocab_size) << "token " << token;
  }
  const int64_t outputs = std::ssize(batch.output_rows());
  float* packed = host_memory() ? hidden : space_->normed;
  const StepInput step{this,       &spec_,    tokens_,
                       positions_, segments_, VariantOf(batch.output_rows(), std::ssize(tokens_))};
  backend_->RunStep(step, [&] {
    Embed();
    for (int i = 0; i < config_.num_layers; ++i) Layer(i);
    NormOutputRows(batch.output_rows(), packed);
  });
  if (hidden == nullptr) {
    // SampleRows follows and waits for the rows. A step without rows is waited for here, so that a
    // caller that measures it measures all of it.
    if (outputs == 0) backend_->Wait();
  } else {
    CopyToHost(packed, outputs * config_.emb_dim, hidden);
  }
  for (const Segment& segment : segments_) segment.state->Advance(segment.rows);
}

void PolysketchModel::Embed() {
  const std::span<const int64_t> none;
  backend_->Embed(weights_->embedding(), tokens_, config_.sinusoidal_positions ? positions_ : none,
                  space_->x);
}

void PolysketchModel::Layer(int i) {
  const LayerWeights& w = weights_->layer(i);
  const int64_t M = std::ssize(tokens_);
  const int D = config_.emb_dim;
  Backend& ops = *backend_;
  if (spec_.decay_gate) {  // whose product takes the norm too
    ops.Norm(space_->x, M, D, w.attn_norm, space_->normed);
    ops.MatMul(space_->normed, M, *w.qkv, nullptr, /*accumulate=*/false, space_->qkv);
  } else {
    ops.NormMatMul(space_->x, M, w.attn_norm, *w.qkv, nullptr, space_->normed, space_->qkv);
  }
  if (spec_.kind == AttentionKind::kLearnedSketchMixed) {
    ops.MixedSketchAttention(spec_, i, segments_, MixedSketch(w), *w.out, space_->x);
  } else {
    ops.AttentionMatMul(spec_, i, segments_, QueriesAndKeys(w), M, *w.out, space_->attended,
                        space_->x);
  }
  ops.Mlp({w.mlp_norm, w.up, w.down}, M, space_->x, space_->normed);
}

MixedSketchInput PolysketchModel::MixedSketch(const LayerWeights& w) {
  return {.qkv = space_->qkv,
          .positions = positions_,
          .thetas = thetas_,
          .near_q_norm = w.near_q_norm,
          .near_k_norm = w.near_k_norm,
          .network = &w.network,
          .log_decay = spec_.decay_gate ? LogDecays(w) : nullptr,
          .qk = space_->qk,
          .near_qk = space_->near_qk,
          .sketch = space_->sketch,
          .attended = space_->attended};
}

AttentionInput PolysketchModel::QueriesAndKeys(const LayerWeights& w) {
  const int64_t rows = std::ssize(tokens_) * spec_.heads;  // of queries; as many of keys
  const int d = spec_.head_dim;
  Backend& ops = *backend_;
  float* q = space_->qk;
  float* k = q + rows * d;
  float* near_q = q;
  float* near_k = k;
  if (spec_.mixed()) {
    // The sketches take q and k without the norms of the near part.
    near_q = space_->near_qk;
    near_k = near_q + rows * d;
    ops.RopeAndNorms(space_->qkv, positions_, spec_.shape(), thetas_,
                     {w.near_q_norm, w.near_k_norm}, q, k, near_q, near_k);
  } else if (config_.has_qk_norm()) {
    ops.RopeAndNorms(space_->qkv, positions_, spec_.shape(), thetas_, {w.qk_norm, w.qk_norm}, q, k,
                     q, k);
  } else {
    ops.Rope(space_->qkv, positions_, spec_.shape(), thetas_, q, k);
  }

  AttentionInput input;
  input.v = space_->qkv + 2 * config_.emb_dim;
  input.v_stride = 3 * config_.emb_dim;
  if (spec_.kind == AttentionKind::kSymmetricPower) {
    input.far_q = q;
    input.far_k = k;
  } else if (!spec_.kv_cache()) {
    FarFeatures(w, q, 2 * rows);
    input.far_q = space_->sketch;
    input.far_k = space_->sketch + rows * spec_.far_dim();
  }
  if (spec_.decay_gate) input.log_decay = LogDecays(w);
  input.coefficients = w.coefficients;
  const bool near_is_far = !spec_.kv_cache() && !spec_.mixed();
  input.near_q = near_is_far ? input.far_q : near_q;
  input.near_k = near_is_far ? input.far_k : near_k;
  return input;
}

const float* PolysketchModel::LogDecays(const LayerWeights& w) {
  const int64_t rows = std::ssize(tokens_);
  float* out = space_->log_decay;
  backend_->MatMul(space_->normed, rows, *w.gate, w.gate_bias, /*accumulate=*/false, out);
  backend_->LogSigmoid(out, rows * spec_.heads, out);
  return out;
}

void PolysketchModel::FarFeatures(const LayerWeights& w, const float* x, int64_t rows) {
  Backend& ops = *backend_;
  switch (spec_.kind) {
    case AttentionKind::kLearnedSketch:
    case AttentionKind::kLearnedSketchMixed:
      return ops.LearnedSketch(w.network, x, rows, space_->sketch);
    case AttentionKind::kRandomSketch:
      return ops.ApplyRandomSketch(w.random_sketch, x, rows, space_->sketch);
    case AttentionKind::kRandomSketchMixed:
      return RandomMixedFeatures(w, x, rows);
    case AttentionKind::kLinear:
      return ops.LinearFeatures(x, rows, spec_.head_dim, space_->sketch);
    case AttentionKind::kPerformer:
      return ops.PerformerFeatures(*w.omega, x, rows, space_->sketch);
    case AttentionKind::kAffineSquare:
      return AffineFeatures(w, x, rows);
    case AttentionKind::kSoftmax:
    case AttentionKind::kPolynomial:
    case AttentionKind::kPolynomialSquare:
    case AttentionKind::kSymmetricPower:
      break;
  }
  PS_CHECK(false) << "no features: " << AttentionKindName(spec_.kind);
}

// The sketch is applied to the qk norm of q and k. That of the queries, then that of the keys, is
// stored in the memory of the attention's output, which is written later.
void PolysketchModel::RandomMixedFeatures(const LayerWeights& w, const float* x, int64_t rows) {
  const int d = spec_.head_dim;
  const int64_t half = rows / 2;
  for (int part = 0; part < 2; ++part) {
    backend_->Norm(x + part * half * d, half, d, w.qk_norm, space_->attended);
    backend_->ApplyRandomSketch(w.random_sketch, space_->attended, half,
                                space_->sketch + part * half * spec_.far_dim());
  }
}

// [c, f q'] and [1, k'], whose dot product is c + f q'.k'.
void PolysketchModel::AffineFeatures(const LayerWeights& w, const float* x, int64_t rows) {
  const int d = spec_.head_dim, heads = spec_.heads;
  const int64_t half = rows / 2;
  float* keys = space_->sketch + half * spec_.far_dim();
  backend_->AffineFeatures(x, half, d, w.coefficients, heads, space_->sketch);
  backend_->AffineFeatures(x + half * d, half, d, nullptr, heads, keys);
}

void PolysketchModel::NormOutputRows(std::span<const int64_t> rows, float* out) {
  const int D = config_.emb_dim;
  const auto next = [&](size_t i) { return rows[i] == rows[i - 1] + 1; };
  ForRuns(rows.size(), next, [&](size_t first, size_t end) {
    backend_->Norm(space_->x + rows[first] * D, static_cast<int64_t>(end - first), D,
                   weights_->final_norm(), out + static_cast<int64_t>(first) * D);
  });
}

void PolysketchModel::ProjectToVocabulary(const float* hidden, int64_t rows, float* logits) {
  backend_->MatMul(hidden, rows, weights_->embedding(), weights_->softmax_bias(),
                   /*accumulate=*/false, logits);
}

void PolysketchModel::Logits(const float* hidden, int64_t rows, float* logits) {
  const int64_t size = rows * config_.vocab_size;
  float* out = OutputFor(logits, size);
  ProjectToVocabulary(InputOf(hidden, rows * config_.emb_dim), rows, out);
  CopyToHost(out, size, logits);
}

void PolysketchModel::LogSumExp(const float* logits, int64_t rows, float* out) {
  const int64_t width = config_.vocab_size;
  float* sums = OutputFor(out, rows);
  backend_->LogSumExp(InputOf(logits, rows * width), rows, width, sums);
  CopyToHost(sums, rows, out);
}

void PolysketchModel::SampleRows(int64_t first, std::span<const SampleQuery> queries,
                                 std::span<SampleResult> results, float* logits,
                                 float* log_sum_exp) {
  const int64_t V = config_.vocab_size, count = std::ssize(queries);
  float* on_device = Grow(count * V, &staged_output_);
  ProjectToVocabulary(space_->normed + first * config_.emb_dim, count, on_device);
  if (log_sum_exp != nullptr) {
    float* sums = Grow(count, &staged_input_);
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

void PolysketchModel::Reserve(int sequences, size_t growing) {
  if (host_memory()) return;
  constexpr auto kRows = static_cast<int64_t>(SampleQuery::kMaxRows);
  const std::vector<int32_t> tokens(static_cast<size_t>(max_step_tokens_), 0);
  const std::vector<int64_t> positions(tokens.size(), 0);
  tokens_ = tokens;
  positions_ = positions;
  segments_ = {};
  Grow(kRows * config_.vocab_size, &staged_input_);  // LogSumExp of logits in host memory
  float* logits = Grow(kRows * config_.vocab_size, &staged_output_);
  backend_->Reserve(spec_, max_step_tokens_, sequences, growing, [&] {
    // The largest step, then smaller ones, whose kernels may be others: kernels differ between a
    // power of two of rows and more rows.
    std::vector<int64_t> steps = {max_step_tokens_};
    for (int64_t rows = 1; rows < max_step_tokens_; rows *= 2) {
      steps.push_back(rows);
      steps.push_back(rows + 1);
    }
    for (const int64_t rows : steps) {
      tokens_ = std::span(tokens).first(static_cast<size_t>(rows));
      positions_ = std::span(positions).first(static_cast<size_t>(rows));
      Embed();
      Layer(0);  // all layers have the same shapes
      backend_->Norm(space_->x, rows, config_.emb_dim, weights_->final_norm(), space_->normed);
      ProjectToVocabulary(space_->normed, std::min(kRows, rows), logits);
      backend_->LogSumExp(logits, 1, config_.vocab_size, staged_input_.data());
    }
  });
}

float* PolysketchModel::Grow(int64_t size, BackendArray* array) {
  if (array->size() < static_cast<size_t>(size)) {
    *array = BackendArray();  // frees the old array before the new one is allocated
    *array = BackendArray(backend_, static_cast<size_t>(size));
  }
  return array->data();
}

const float* PolysketchModel::InputOf(const float* host, int64_t size) {
  if (host_memory()) return host;
  float* input = Grow(size, &staged_input_);
  backend_->CopyIn(host, static_cast<size_t>(size), input);
  return input;
}

float* PolysketchModel::OutputFor(float* host, int64_t size) {
  return host_memory() ? host : Grow(size, &staged_output_);
}

void PolysketchModel::CopyToHost(const float* out, int64_t size, float* host) {
  if (out != host) backend_->CopyOut(out, static_cast<size_t>(size), host);
}

}  // namespace polysketch
