#include "engine/model/decoder_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/memory_limit.h"

namespace polysketch {
namespace {

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

// Activations of one step of at most `tokens` tokens, in the backend's memory. Each array has room
// for that of any layer.
struct DecoderModel::Workspace {
  // Floats for a token of the arrays of one layer's attention.
  struct Widths {
    int64_t qkv = 0, qk = 0, near_qk = 0, sketch = 0, attended = 0, log_decay = 0;

    explicit Widths(const ModelSpec& spec) {
      const auto raise = [](int64_t* width, int64_t needed) { *width = std::max(*width, needed); };
      for (const LayerSpec& layer : spec.layers) {
        const AttentionSpec& attention = layer.attention;
        const HeadShape shape = attention.shape();
        const int64_t heads = int64_t{shape.heads} + shape.kv_heads;
        raise(&qkv, shape.row());
        raise(&qk, heads * shape.head_dim);
        raise(&near_qk, attention.keeps_far_keys() ? heads * shape.head_dim : 0);
        // A far part of sketches has those of the network beside the maps of them.
        const bool twice =
            attention.far_part() && attention.far_kind == AttentionKind::kLearnedSketch;
        raise(&sketch, heads * attention.far_dim() * (twice ? 2 : 1));
        raise(&attended, shape.q_row());
        raise(&log_decay, attention.decay_gate ? shape.kv_heads : 0);
      }
    }
    int64_t sum() const { return qkv + qk + near_qk + sketch + attended + log_decay; }
  };

  // Floats for a token, of x and normed and of the others.
  static int64_t Width(const ModelSpec& spec) {
    return 2 * int64_t{spec.frame.width} +
           std::max(Widths(spec).sum(), 3 * int64_t{spec.frame.mlp_hidden});
  }

  Workspace(Backend* backend, const ModelSpec& spec, int64_t tokens)
      : memory(backend, static_cast<size_t>(tokens * Width(spec))) {
    const Widths widths(spec);
    x = memory.data();
    normed = x + tokens * spec.frame.width;
    // The activations of the attention and of the MLP are never live at the same time.
    qkv = normed + tokens * spec.frame.width;
    qk = qkv + tokens * widths.qkv;
    near_qk = qk + tokens * widths.qk;
    sketch = near_qk + tokens * widths.near_qk;
    attended = sketch + tokens * widths.sketch;
    log_decay = attended + tokens * widths.attended;
  }

  BackendArray memory;
  float* x;          // [M, D]: the residual stream
  float* normed;     // [M, D]; scratch of the MLP, [M, D + 3h]
  float* qkv;        // [M, H + 2 Hkv, d]
  float* qk;         // q [M, H, d], then k [M, Hkv, d], so that one call sketches both
  float* near_qk;    // norms of qk in mixed kinds, those before RoPE with a far part
  float* sketch;     // [M, H + Hkv, far_dim], of q and then of k
  float* attended;   // [M, H, d]
  float* log_decay;  // [M, Hkv]; with a decay gate
};

DecoderModel::DecoderModel(ModelSpec spec, const LoadOptions& options, Backend* backend,
                           std::unique_ptr<ModelWeights> weights)
    : spec_(std::move(spec)),
      attention_(spec_.Attention()),
      max_step_tokens_(options.max_step_tokens),
      backend_(backend),
      weights_(std::move(weights)),
      space_(std::make_unique<Workspace>(backend, spec_, max_step_tokens_)) {}

DecoderModel::~DecoderModel() = default;

size_t DecoderModel::WorkspaceBytes(const ModelSpec& spec, int tokens) {
  return static_cast<size_t>(tokens * Workspace::Width(spec)) * sizeof(float);
}

std::unique_ptr<SequenceState> DecoderModel::NewState() {
  return MemoryFits(StateBytes(1)) ? backend_->NewState(attention_) : nullptr;
}

std::vector<int> DecoderModel::FarHeads() const {
  std::vector<int> heads;
  if (!host_memory()) return heads;
  for (const AttentionSpec& layer : attention_) {
    heads.push_back(layer.has_far_part() ? layer.heads : 0);
  }
  return heads;
}

double DecoderModel::KeysRead(int64_t position) const {
  int64_t keys = 0;
  for (const AttentionSpec& layer : attention_) {
    if (layer.kv_cache()) keys += layer.Attended(position);
  }
  return static_cast<double>(keys) / static_cast<double>(attention_.size());
}

void DecoderModel::Step(const Batch& batch, float* hidden) {
  tokens_ = batch.tokens();
  positions_ = batch.positions();
  segments_ = batch.segments();
  far_mass_ = batch.far_mass();
  PS_CHECK(far_mass_ == nullptr || host_memory());
  PS_CHECK(std::ssize(tokens_) <= max_step_tokens_) << tokens_.size();
  for (const int32_t token : tokens_) {
    PS_CHECK(token >= 0 && token < vocab_size()) << "token " << token;
  }
  const int64_t outputs = std::ssize(batch.output_rows());
  float* packed = host_memory() ? hidden : space_->normed;
  const StepInput step{this,       attention_, tokens_,
                       positions_, segments_,  VariantOf(batch.output_rows(), std::ssize(tokens_))};
  backend_->RunStep(step, [&] {
    Embed();
    for (int i = 0; i < static_cast<int>(spec_.layers.size()); ++i) Layer(i);
    NormOutputRows(batch.output_rows(), packed);
  });
  if (hidden == nullptr) {
    // SampleRows follows and waits for the rows. A step without rows is waited for here, so that a
    // caller that measures it measures all of it.
    if (outputs == 0) backend_->Wait();
  } else {
    CopyToHost(packed, outputs * spec_.frame.width, hidden);
  }
  for (const Segment& segment : segments_) segment.state->Advance(segment.rows);
}

void DecoderModel::Embed() {
  const std::span<const int64_t> none;
  backend_->Embed(*weights_->embedding, tokens_, spec_.frame.sinusoids ? positions_ : none,
                  space_->x);
}

void DecoderModel::Layer(int i) {
  const LayerSpec& layer = spec_.layers[static_cast<size_t>(i)];
  const AttentionSpec& attention = layer.attention;
  const LayerWeights& w = weights_->layers[static_cast<size_t>(i)];
  const int64_t M = std::ssize(tokens_);
  Backend& ops = *backend_;
  std::span<const float> thetas;  // empty: heads are not rotated
  if (layer.rope) thetas = spec_.frame.rope_thetas;
  if (attention.decay_gate) {
    ops.NormMatMulDecay(space_->x, M, w.attn_norm, *w.qkv, w.qkv_bias, *w.gate, w.gate_bias,
                        space_->normed, space_->qkv, space_->log_decay);
  } else {
    ops.NormMatMul(space_->x, M, w.attn_norm, *w.qkv, w.qkv_bias, space_->normed, space_->qkv);
  }
  const bool of_heads = attention.kind == AttentionKind::kSymmetricPower ||
                        (attention.kv_cache() && !attention.far_part());
  if (attention.kind == AttentionKind::kLearnedSketchMixed) {
    ops.MixedSketchAttention(attention, i, segments_, MixedSketch(attention, w, thetas), *w.out,
                             space_->x);
  } else if (of_heads) {
    ops.HeadAttention(attention, i, segments_, Heads(attention, w, thetas), *w.out, w.out_bias,
                      space_->x);
  } else if (w.out_bias == nullptr) {
    ops.AttentionMatMul(attention, i, segments_, QueriesAndKeys(attention, w, thetas), M, *w.out,
                        space_->attended, space_->x);
  } else {
    ops.Attention(attention, i, segments_, QueriesAndKeys(attention, w, thetas), space_->attended);
    ops.MatMul(space_->attended, M, *w.out, w.out_bias, /*accumulate=*/true, space_->x);
  }
  ops.Mlp(w.mlp, M, space_->x, space_->normed);
}

float* DecoderModel::NextFarMass(const AttentionSpec& attention) {
  if (far_mass_ == nullptr || !attention.has_far_part()) return nullptr;
  return std::exchange(far_mass_, far_mass_ + std::ssize(tokens_) * attention.heads);
}

MixedSketchInput DecoderModel::MixedSketch(const AttentionSpec& attention, const LayerWeights& w,
                                           std::span<const float> thetas) {
  return {.qkv = space_->qkv,
          .positions = positions_,
          .thetas = thetas,
          .near_q_norm = w.near_q_norm,
          .near_k_norm = w.near_k_norm,
          .network = &w.network,
          .log_decay = attention.decay_gate ? space_->log_decay : nullptr,
          .far_mass = NextFarMass(attention),
          .qk = space_->qk,
          .near_qk = space_->near_qk,
          .sketch = space_->sketch,
          .attended = space_->attended};
}

HeadInput DecoderModel::Heads(const AttentionSpec& attention, const LayerWeights& w,
                              std::span<const float> thetas) {
  return {.qkv = space_->qkv,
          .positions = positions_,
          .thetas = thetas,
          .norms = {w.q_norm, w.k_norm, /*before_rotation=*/spec_.frame.head_norms},
          .log_decay = attention.decay_gate ? space_->log_decay : nullptr,
          .coefficients = w.coefficients,
          .far_mass = NextFarMass(attention),
          .qk = space_->qk,
          .attended = space_->attended};
}

AttentionInput DecoderModel::QueriesAndKeys(const AttentionSpec& attention, const LayerWeights& w,
                                            std::span<const float> thetas) {
  const HeadShape shape = attention.shape();
  const int64_t rows = std::ssize(tokens_);
  Backend& ops = *backend_;
  float* q = space_->qk;
  float* k = q + rows * shape.q_row();
  float* near_q = q;
  float* near_k = k;
  if (attention.mixed()) {
    // The sketches take q and k without the norms of the near part.
    near_q = space_->near_qk;
    near_k = near_q + rows * shape.q_row();
    ops.RopeAndNorms(space_->qkv, positions_, shape, thetas, {w.near_q_norm, w.near_k_norm}, q, k,
                     near_q, near_k);
  } else if (w.q_norm.scale != nullptr) {
    ops.RopeAndNorms(space_->qkv, positions_, shape, thetas,
                     {w.q_norm, w.k_norm, /*before_rotation=*/spec_.frame.head_norms}, q, k, q, k);
  } else {
    ops.Rope(space_->qkv, positions_, shape, thetas, q, k);
  }

  AttentionInput input;
  input.v = space_->qkv + shape.q_row() + shape.k_row();
  input.v_stride = shape.row();
  if (!attention.kv_cache()) {
    PS_CHECK(shape.kv_heads == shape.heads) << "grouped queries";
    const int64_t heads = rows * shape.heads;
    FarFeatures(attention, w, q, 2 * heads);
    input.far_q = space_->sketch;
    input.far_k = space_->sketch + heads * attention.far_dim();
  } else {
    FarMaps(attention, w, &input);
  }
  if (attention.decay_gate) input.log_decay = space_->log_decay;
  input.coefficients = w.coefficients;
  input.far_mass = NextFarMass(attention);
  const bool near_is_far = !attention.kv_cache() && !attention.mixed();
  input.near_q = near_is_far ? input.far_q : near_q;
  input.near_k = near_is_far ? input.far_k : near_k;
  return input;
}

// Of queries and keys as the near part has them, but not rotated.
void DecoderModel::FarMaps(const AttentionSpec& attention, const LayerWeights& w,
                           AttentionInput* input) {
  const HeadShape shape = attention.shape();
  const int64_t rows = std::ssize(tokens_);
  const int d = attention.head_dim, r = attention.far_dim();
  const std::span<const float> not_rotated;
  Backend& ops = *backend_;
  float* q = space_->near_qk;
  float* k = q + rows * shape.q_row();
  if (w.q_norm.scale != nullptr) {
    ops.RopeAndNorms(space_->qkv, positions_, shape, not_rotated,
                     {w.q_norm, w.k_norm, /*before_rotation=*/spec_.frame.head_norms}, q, k, q, k);
  } else {
    ops.Rope(space_->qkv, positions_, shape, not_rotated, q, k);
  }
  float* far_q = space_->sketch;
  float* far_k = far_q + rows * shape.heads * r;
  int width = d;
  if (attention.far_kind == AttentionKind::kLearnedSketch) {
    float* sketches = far_k + rows * shape.kv_heads * r;
    ops.LearnedSketch(w.network, q, rows * (shape.heads + shape.kv_heads), sketches);
    q = sketches;
    k = q + rows * shape.heads * r;
    width = r;
  }
  ops.HeadMaps(q, rows, shape.heads, width, w.far_q, w.far_q_bias, r, far_q);
  ops.HeadMaps(k, rows, shape.kv_heads, width, w.far_k, w.far_k_bias, r, far_k);
  if (attention.far_kind == AttentionKind::kLinear) {
    ops.LinearFeatures(far_q, rows * shape.heads, r, w.far_q_factors, shape.heads, far_q);
    ops.LinearFeatures(far_k, rows * shape.kv_heads, r, nullptr, 1, far_k);
  }
  input->far_q = far_q;
  input->far_k = far_k;
}

void DecoderModel::FarFeatures(const AttentionSpec& attention, const LayerWeights& w,
                               const float* x, int64_t rows) {
  Backend& ops = *backend_;
  switch (attention.kind) {
    case AttentionKind::kLearnedSketch:
    case AttentionKind::kLearnedSketchMixed:
      return ops.LearnedSketch(w.network, x, rows, space_->sketch);
    case AttentionKind::kRandomSketch:
      return ops.ApplyRandomSketch(w.random_sketch, x, rows, space_->sketch);
    case AttentionKind::kRandomSketchMixed:
      return RandomMixedFeatures(attention, w, x, rows);
    case AttentionKind::kLinear:
      return ops.LinearFeatures(x, rows, attention.head_dim, nullptr, 1, space_->sketch);
    case AttentionKind::kPerformer:
      return ops.PerformerFeatures(*w.omega, x, rows, space_->sketch);
    case AttentionKind::kAffineSquare:
      return AffineFeatures(attention, w, x, rows);
    case AttentionKind::kSoftmax:
    case AttentionKind::kPolynomial:
    case AttentionKind::kPolynomialSquare:
    case AttentionKind::kSymmetricPower:
      break;
  }
  PS_CHECK(false) << "no features: " << AttentionKindName(attention.kind);
}

// The sketch is applied to the qk norm of q and k. That of the queries, then that of the keys, is
// stored in the memory of the attention's output, which is written later.
void DecoderModel::RandomMixedFeatures(const AttentionSpec& attention, const LayerWeights& w,
                                       const float* x, int64_t rows) {
  const int d = attention.head_dim;
  const int64_t half = rows / 2;
  for (int part = 0; part < 2; ++part) {
    backend_->Norm(x + part * half * d, half, d, w.q_norm, space_->attended);
    backend_->ApplyRandomSketch(w.random_sketch, space_->attended, half,
                                space_->sketch + part * half * attention.far_dim());
  }
}

// [c, f q'] and [1, k'], whose dot product is c + f q'.k'.
void DecoderModel::AffineFeatures(const AttentionSpec& attention, const LayerWeights& w,
                                  const float* x, int64_t rows) {
  const int d = attention.head_dim, heads = attention.heads;
  const int64_t half = rows / 2;
  float* keys = space_->sketch + half * attention.far_dim();
  backend_->AffineFeatures(x, half, d, w.coefficients, heads, space_->sketch);
  backend_->AffineFeatures(x + half * d, half, d, nullptr, heads, keys);
}

void DecoderModel::NormOutputRows(std::span<const int64_t> rows, float* out) {
  const auto next = [&](size_t i) { return rows[i] == rows[i - 1] + 1; };
  ForRuns(rows.size(), next, [&](size_t first, size_t end) {
    FinalNorm(rows[first], static_cast<int64_t>(end - first),
              out + static_cast<int64_t>(first) * spec_.frame.width);
  });
}

void DecoderModel::FinalNorm(int64_t first, int64_t count, float* out) {
  const int D = spec_.frame.width;
  float* x = space_->x + first * D;
  const Matrix* rotation = weights_->final_rotation;
  // The residual stream ends here, so that its memory holds what is rotated.
  backend_->Norm(x, count, D, weights_->final_norm, rotation == nullptr ? out : x);
  if (rotation == nullptr) return;
  backend_->MatMul(x, count, *rotation, nullptr, /*accumulate=*/false, out);
}

void DecoderModel::ProjectToVocabulary(const float* hidden, int64_t rows, float* logits) {
  backend_->MatMul(hidden, rows, *weights_->output, weights_->output_bias,
                   /*accumulate=*/false, logits);
}

void DecoderModel::Logits(const float* hidden, int64_t rows, float* logits) {
  const int64_t size = rows * vocab_size();
  float* out = OutputFor(logits, size);
  ProjectToVocabulary(InputOf(hidden, rows * spec_.frame.width), rows, out);
  CopyToHost(out, size, logits);
}

void DecoderModel::LogSumExp(const float* logits, int64_t rows, float* out) {
  const int64_t width = vocab_size();
  float* sums = OutputFor(out, rows);
  backend_->LogSumExp(InputOf(logits, rows * width), rows, width, sums);
  CopyToHost(sums, rows, out);
}

void DecoderModel::SampleRows(int64_t first, std::span<const SampleQuery> queries,
                              std::span<SampleResult> results, float* logits, float* log_sum_exp) {
  const int64_t V = vocab_size(), count = std::ssize(queries);
  float* on_device = Grow(count * V, &staged_output_);
  ProjectToVocabulary(space_->normed + first * spec_.frame.width, count, on_device);
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

void DecoderModel::Reserve(int sequences, size_t growing) {
  if (host_memory()) return;
  constexpr auto kRows = static_cast<int64_t>(SampleQuery::kMaxRows);
  const std::vector<int32_t> tokens(static_cast<size_t>(max_step_tokens_), 0);
  const std::vector<int64_t> positions(tokens.size(), 0);
  tokens_ = tokens;
  positions_ = positions;
  segments_ = {};
  Grow(kRows * vocab_size(), &staged_input_);  // LogSumExp of logits in host memory
  float* logits = Grow(kRows * vocab_size(), &staged_output_);
  backend_->Reserve(attention_, max_step_tokens_, sequences, growing, [&] {
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
      for (size_t i = 0; i < attention_.size(); ++i) {  // the first layer of each shape
        const auto end = attention_.begin() + static_cast<ptrdiff_t>(i);
        if (std::find(attention_.begin(), end, attention_[i]) == end) Layer(static_cast<int>(i));
      }
      FinalNorm(0, rows, space_->normed);
      ProjectToVocabulary(space_->normed, std::min(kRows, rows), logits);
      backend_->LogSumExp(logits, 1, vocab_size(), staged_input_.data());
    }
  });
}

float* DecoderModel::Grow(int64_t size, BackendArray* array) {
  if (array->size() < static_cast<size_t>(size)) {
    *array = BackendArray();  // frees the old array before the new one is allocated
    *array = BackendArray(backend_, static_cast<size_t>(size));
  }
  return array->data();
}

const float* DecoderModel::InputOf(const float* host, int64_t size) {
  if (host_memory()) return host;
  float* input = Grow(size, &staged_input_);
  backend_->CopyIn(host, static_cast<size_t>(size), input);
  return input;
}

float* DecoderModel::OutputFor(float* host, int64_t size) {
  return host_memory() ? host : Grow(size, &staged_output_);
}

void DecoderModel::CopyToHost(const float* out, int64_t size, float* host) {
  if (out != host) backend_->CopyOut(out, static_cast<size_t>(size), host);
}

}  // namespace polysketch
