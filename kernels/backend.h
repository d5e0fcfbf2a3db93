// The interface between a model and a machine: a backend owns packed weights, sequence states and
// the ops of a forward pass.
//
// Implementations:
//   kernels/reference  scalar, float64 inside an op; the other backends are tested against it
//   kernels/cpu        vectorised, for several instruction sets
//   kernels/cuda       NVIDIA GPUs
// An op has one file in each of them, with the same name.
//
// Contract of every op:
// - Rows are tokens, or heads of tokens. The result of a row is one fixed sequence of
//   floating-point operations that depends on the row and, in Attention, on the past of its
//   sequence. It does not depend on the number of rows, the split into segments, the number of
//   threads or the other rows (docs/numerics.md). Tests compare bits.
// - Pointers are float32 arrays in the backend's memory (NewArray), row-major, and contiguous
//   unless a stride is given. The output overlaps no input unless the op says so.
// - Shapes are checked by the caller: a mismatch fails a PS_CHECK and is never a Status.
// - Calls come from one thread at a time, the engine thread. A backend may use threads of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "kernels/attention_spec.h"
#include "kernels/matrix.h"
#include "kernels/row_sampling.h"
#include "kernels/segment.h"
#include "kernels/sequence_state.h"

namespace polysketch {

class ThreadPool;

// Inputs of Backend::Attention for a batch of M rows, H heads and Hkv heads of keys and values. In
// unmixed kinds the far pointers equal the near ones; in KV kinds without a far part they are null.
struct AttentionInput {
  const float* near_q = nullptr;  // [M, H, near_dim]
  const float* near_k = nullptr;  // [M, Hkv, near_dim]
  const float* far_q = nullptr;   // [M, H, far_dim]
  const float* far_k = nullptr;   // [M, Hkv, far_dim]
  const float* v = nullptr;       // row m, kv head h at v + m * v_stride + h * d
  int64_t v_stride = 0;           // in floats
  // log of what the decay gate of a kv head keeps at a token, at most 0: [M, Hkv]. Read if
  // spec.decay_gate.
  const float* log_decay = nullptr;
  // a_0 to a_p of each head's P: [H, power + 1]. Read in polynomial_square.
  const float* coefficients = nullptr;
  // Output [M, H], or null: the far mass of each query, what the far part has of the denominator,
  // with c. Written by backends with host_memory(), in layers with a far part.
  float* far_mass = nullptr;
};

// Inputs of Backend::MixedSketchAttention for a batch of M rows, and its scratch.
struct MixedSketchInput {
  const float* qkv = nullptr;          // [M, 3, H, d]
  std::span<const int64_t> positions;  // [M]
  std::span<const float> thetas;       // [d / 2], as in Rope
  NormWeights near_q_norm, near_k_norm;
  const SketchNetwork* network = nullptr;
  const float* log_decay = nullptr;  // [M, H], as in AttentionInput
  float* far_mass = nullptr;         // the same
  // Scratch.
  float* qk = nullptr;        // [2, M, H, d]
  float* near_qk = nullptr;   // [2, M, H, d]
  float* sketch = nullptr;    // [2, M, H, far_dim]
  float* attended = nullptr;  // [M, H d]
};

// Inputs of Backend::HeadAttention for a batch of M rows, and its scratch.
struct HeadInput {
  const float* qkv = nullptr;          // [M, H + 2 Hkv, d]
  std::span<const int64_t> positions;  // [M]
  std::span<const float> thetas;       // as in Rope
  HeadNorms norms;                     // as in RopeAndNorms; q.scale null: none
  const float* log_decay = nullptr;    // as in AttentionInput
  const float* coefficients = nullptr;
  float* far_mass = nullptr;
  // Scratch.
  float* qk = nullptr;        // [M, H + Hkv, d]
  float* attended = nullptr;  // [M, H d]
};

// What the ops of one step receive besides weights and arrays (Backend::RunStep). Two steps with
// equal `model` and `variant` call the same ops with the same weights and arrays.
struct StepInput {
  const void* model = nullptr;
  std::span<const AttentionSpec> layers;
  std::span<const int32_t> tokens;
  std::span<const int64_t> positions;
  std::span<const Segment> segments;
  int64_t variant = 0;  // negative: equals no other step
};

// Device memory in bytes: held by the backend, and free.
struct DeviceMemory {
  size_t held = 0, free = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // "reference", "cpu/avx512", "cuda/NVIDIA H200", ...
  virtual std::string_view name() const = 0;
  virtual int threads() const = 0;
  // The pool of host threads that ops run on, which the caller may use between two ops. Null if ops
  // run elsewhere.
  virtual ThreadPool* pool() { return nullptr; }
  // The first error of the device. After an error no result may be used; further calls neither
  // crash nor block. Always OK for backends that compute on the host.
  virtual Status status() const { return Status(); }
  // Whether Attention reads states of the format.
  virtual bool has_state_format(StateFormat /*format*/) const { return true; }

  // --- memory ---

  // Whether ops accept arrays in host memory that NewArray did not allocate.
  virtual bool host_memory() const { return true; }
  // Allocates `size` zeroed floats, aligned to 64 bytes. BackendArray owns such an array.
  virtual float* NewArray(size_t size);
  virtual void DeleteArray(float* array);
  // Copies `size` floats between the host and an array of NewArray. The host's array may be
  // changed, or read, after the call.
  virtual void CopyIn(const float* host, size_t size, float* array);
  virtual void CopyOut(const float* array, size_t size, float* host);
  // Packs w [in, out], or the transpose of w [out, in] if `transpose`, converted to `type`. Keeps
  // the integers of a quantised w if `type` is its type and its scales belong to columns of the
  // packed matrix.
  virtual std::unique_ptr<const Matrix> PackMatrix(const HostMatrix& w, bool transpose,
                                                   DataType type) = 0;
  // A state of a model whose layers have this attention, in order.
  virtual std::unique_ptr<SequenceState> NewState(std::span<const AttentionSpec> layers) = 0;
  // Size in bytes of a state after `tokens` tokens.
  virtual size_t StateBytes(std::span<const AttentionSpec> layers, int64_t tokens) const = 0;
  // Bytes of a layer's state that a decode step reads: the far state, and `tokens` near keys and values of
  // each kv head.
  virtual int64_t ReadBytes(const AttentionSpec& spec, int64_t tokens) const {
    return spec.key_heads() * (spec.FarReadBytes() + spec.NearReadBytes(tokens));
  }
  // Allocates device memory in advance, so that later steps allocate none: the workspace of any
  // step of at most `rows` rows in at most `segments` segments, and `kv_bytes` for the KV caches of
  // all states. `ops` calls the ops of steps of `rows` rows and of fewer, without segments; they
  // compute nothing during this call. Backends that compute on the host do nothing.
  virtual void Reserve(std::span<const AttentionSpec> /*layers*/, int64_t /*rows*/,
                       int64_t /*segments*/, size_t /*kv_bytes*/,
                       const std::function<void()>& /*ops*/) {}
  virtual DeviceMemory device_memory() { return {}; }

  // --- ops ---

  // out[m] = E[:, tokens[m]] + PE(positions[m]), without PE if `positions` is empty; embedding: E
  // [D, V]; positions [M] or []; out [M, D].
  // PE(t)[2i] = sin(t theta_i), PE(t)[2i+1] = cos(t theta_i), theta_i = 10000^(-i/(D/2)) rounded
  // to float32; angles are exact (kernels/angles.h).
  virtual void Embed(const Matrix& embedding, std::span<const int32_t> tokens,
                     std::span<const int64_t> positions, float* out) = 0;
  // out[m] = the norm of x[m] (NormKind). x, out [rows, width]; out may be x.
  virtual void Norm(const float* x, int64_t rows, int width, const NormWeights& norm,
                    float* out) = 0;
  // out = x w (+ bias) (+ out if `accumulate`). x [rows, in], bias [out] or null, out [rows, out].
  // Each output element is summed over k in order, from zero, in one accumulator; bias and the
  // previous output are added last.
  virtual void MatMul(const float* x, int64_t rows, const Matrix& w, const float* bias,
                      bool accumulate, float* out) = 0;
  // Rotates q and k of qkv [M, H + 2 Hkv, d] by the angles positions[m] thetas[i]
  // (kernels/angles.h). Reads pairs, writes halves:
  // out[i] = x[2i] cos - x[2i+1] sin, out[d/2+i] = x[2i+1] cos + x[2i] sin. q [M, H, d], k [M, Hkv,
  // d]. thetas: [d/2] in host memory; if empty, heads are copied.
  virtual void Rope(const float* qkv, std::span<const int64_t> positions, const HeadShape& shape,
                    std::span<const float> thetas, float* q, float* k) = 0;
  // out[m] = u * gate(g), [u, g] = up[m], or gelu(up[m]) without a gate. up [rows, UpColumns], out
  // [rows, hidden].
  virtual void Gate(GateKind gate, const float* up, int64_t rows, int hidden, float* out) = 0;

  // --- fused ops: the same results as the ops that the default implementations call ---

  // out = Norm(x) w (+ bias). x [rows, in], bias [out] or null, out [rows, out]. normed: scratch
  // [rows, in].
  virtual void NormMatMul(const float* x, int64_t rows, const NormWeights& norm, const Matrix& w,
                          const float* bias, float* normed, float* out) {
    Norm(x, rows, static_cast<int>(w.in()), norm, normed);
    MatMul(normed, rows, w, bias, /*accumulate=*/false, out);
  }
  // NormMatMul, and log_decay = LogSigmoid(Norm(x) gate (+ gate_bias)). gate [in, heads], gate_bias
  // [heads] or null, log_decay [rows, heads].
  virtual void NormMatMulDecay(const float* x, int64_t rows, const NormWeights& norm,
                               const Matrix& w, const float* bias, const Matrix& gate,
                               const float* gate_bias, float* normed, float* out,
                               float* log_decay) {
    Norm(x, rows, static_cast<int>(w.in()), norm, normed);
    MatMul(normed, rows, w, bias, /*accumulate=*/false, out);
    MatMul(normed, rows, gate, gate_bias, /*accumulate=*/false, log_decay);
    LogSigmoid(log_decay, rows * gate.out(), log_decay);
  }
  // x += Gate(Norm(x) up + up_bias) down + down_bias. x [rows, D], scratch [rows, D + 3 hidden].
  virtual void Mlp(const MlpWeights& mlp, int64_t rows, float* x, float* scratch) {
    const int64_t hidden = mlp.down->in();
    float* up = scratch + rows * mlp.up->in();
    float* gated = up + rows * mlp.up->out();
    NormMatMul(x, rows, mlp.norm, *mlp.up, mlp.up_bias, scratch, up);
    Gate(mlp.gate, up, rows, static_cast<int>(hidden), gated);
    MatMul(gated, rows, *mlp.down, mlp.down_bias, /*accumulate=*/true, x);
  }
  // Rope, and the norms of its heads: normed_q = Norm(q) [M, H, d], normed_k = Norm(k) [M, Hkv, d].
  // normed_q may be q, and normed_k k. With norms.before_rotation instead the norms of the heads of
  // qkv, rotated; q and k are not used.
  virtual void RopeAndNorms(const float* qkv, std::span<const int64_t> positions,
                            const HeadShape& shape, std::span<const float> thetas,
                            const HeadNorms& norms, float* q, float* k, float* normed_q,
                            float* normed_k) {
    PS_CHECK(!norms.before_rotation) << "of the backend itself";
    const auto rows = static_cast<int64_t>(positions.size());
    Rope(qkv, positions, shape, thetas, q, k);
    Norm(q, rows * shape.heads, shape.head_dim, norms.q, normed_q);
    Norm(k, rows * shape.kv_heads, shape.head_dim, norms.k, normed_k);
  }

  // out[m][0, r) = g(x[m]); columns [r, round_up(r, 8)) are zero. x [rows, d], out [rows,
  // round_up(r, 8)].
  virtual void LearnedSketch(const SketchNetwork& net, const float* x, int64_t rows,
                             float* out) = 0;
  // out[m][0, r) = f(x[m]); shapes as for LearnedSketch.
  virtual void ApplyRandomSketch(const RandomSketch& sketch, const float* x, int64_t rows,
                                 float* out) = 0;
  // out[m] = factors[m % heads] (elu(x[m]) + 1), without the factor if `factors` is null. x, out
  // [rows, width], factors [heads]. out may be x.
  virtual void LinearFeatures(const float* x, int64_t rows, int width, const float* factors,
                              int heads, float* out) = 0;
  // out = exp(x' omega - |x'|^2 / 2) / sqrt(m), x' = x / d^(1/4). omega [d, m], x [rows, d], out
  // [rows, m].
  virtual void PerformerFeatures(const Matrix& omega, const float* x, int64_t rows, float* out) = 0;
  // out[m][0] = c, out[m][1 + i] = f x[m][i] with (c, f) = terms[m % heads], or (1, 1) if `terms`
  // is null; further columns are zero. So a dot product of rows of out is affine in the one of the
  // rows of x. x [rows, width], terms [heads, 2], out [rows, round_up(width + 1, 8)].
  virtual void AffineFeatures(const float* x, int64_t rows, int width, const float* terms,
                              int heads, float* out) = 0;
  // out[m][h] = x[m][h] maps[h] + biases[h], summed from the bias over i in order. x [rows, heads,
  // width], maps [heads, width, size], biases [heads, size], out [rows, heads, size], size a
  // multiple of 16.
  virtual void HeadMaps(const float* x, int64_t rows, int heads, int width, const float* maps,
                        const float* biases, int size, float* out) = 0;
  // out_t = sum_s w[t,s] v_s / (c + sum_s w[t,s]), s <= t and spec.Visible(s, t), with the weights
  // of spec.kind (docs/attention.md). out [M, H, d]. Query head h reads kv head h / query_group().
  // spec: that of the layer in the states. For segments of any length: reads each state, appends
  // the segment's keys and values, folds the blocks that become full. Order of the sums:
  // - Far part: the state as it was at the start of t's block.
  // - Near part: tokens s in order, from the start of t's block. KV kinds: all visible ones.
  // - Fold: a block is summed from zero in token order and added to S once, when the first token
  //   after it arrives.
  // A far part of a window (AttentionSpec::far_size):
  // - Far part: the state with the blocks that the window of t has left.
  // - Fold: blocks of `block` tokens, in order, when the first token arrives whose window has left
  //   them; without the sinks.
  // - The near part's sums are scaled by e^-m, m its largest exponent, and both parts to the
  //   larger one of e^m and the far part's weight.
  // With a decay gate w[t,s] is multiplied by e^(G_t - G_s). G_t is the float32 sum of log_decay
  // from the first token of t's block to t, in token order; a block buffer holds it for each token.
  // - Far part: multiplied by e^(G_t).
  // - Fold: phi(k_s) is multiplied by e^(G_b - G_s), b the last token of the block, and S and z by
  //   e^(G_b).
  virtual void Attention(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                         const AttentionInput& input, float* out) = 0;
  // x += Attention w, a fused op. x [M, w.out()], attended: scratch [M, H d].
  virtual void AttentionMatMul(const AttentionSpec& spec, int layer,
                               std::span<const Segment> segments, const AttentionInput& input,
                               int64_t rows, const Matrix& w, float* attended, float* x) {
    Attention(spec, layer, segments, input, attended);
    MatMul(attended, rows, w, nullptr, /*accumulate=*/true, x);
  }
  // x += Attention w (+ bias) of KV kinds without a far part and of symmetric_power, a fused op:
  // queries and keys are the heads of qkv, normed and rotated.
  virtual void HeadAttention(const AttentionSpec& spec, int layer,
                             std::span<const Segment> segments, const HeadInput& input,
                             const Matrix& w, const float* bias, float* x) {
    const auto rows = static_cast<int64_t>(input.positions.size());
    const AttentionInput of_attention = RotateHeads(spec, input);
    if (bias == nullptr) {
      AttentionMatMul(spec, layer, segments, of_attention, rows, w, input.attended, x);
    } else {
      Attention(spec, layer, segments, of_attention, input.attended);
      MatMul(input.attended, rows, w, bias, /*accumulate=*/true, x);
    }
  }
  // x += Attention w in learned_sketch_mixed, a fused op: rotated queries and keys, their norms in
  // the near part and their sketches in the far part.
  virtual void MixedSketchAttention(const AttentionSpec& spec, int layer,
                                    std::span<const Segment> segments,
                                    const MixedSketchInput& input, const Matrix& w, float* x) {
    const auto rows = static_cast<int64_t>(input.positions.size());
    const int64_t size = rows * spec.heads * spec.head_dim;
    float *k = input.qk + size, *near_k = input.near_qk + size;
    RopeAndNorms(input.qkv, input.positions, spec.shape(), input.thetas,
                 {input.near_q_norm, input.near_k_norm}, input.qk, k, input.near_qk, near_k);
    LearnedSketch(*input.network, input.qk, 2 * rows * spec.heads, input.sketch);
    AttentionInput of_attention;
    of_attention.near_q = input.near_qk;
    of_attention.near_k = near_k;
    of_attention.far_q = input.sketch;
    of_attention.far_k = input.sketch + rows * spec.heads * spec.far_dim();
    of_attention.v = input.qkv + 2 * int64_t{spec.heads} * spec.head_dim;
    of_attention.v_stride = 3 * int64_t{spec.heads} * spec.head_dim;
    of_attention.log_decay = input.log_decay;
    of_attention.far_mass = input.far_mass;
    AttentionMatMul(spec, layer, segments, of_attention, rows, w, input.attended, x);
  }
  // out[i] = log(1 / (1 + exp(-x[i]))). x, out [size]; out may be x.
  virtual void LogSigmoid(const float* x, int64_t size, float* out) = 0;
  // out[m] = log sum_j exp(x[m][j]). x [rows, width], out [rows].
  virtual void LogSumExp(const float* x, int64_t rows, int64_t width, float* out) = 0;

  // The inputs of Attention in HeadAttention, with queries and keys in `qk`.
  AttentionInput RotateHeads(const AttentionSpec& spec, const HeadInput& input) {
    const HeadShape shape = spec.shape();
    float *q = input.qk, *k = q + static_cast<int64_t>(input.positions.size()) * shape.q_row();
    if (input.norms.q.scale != nullptr) {
      RopeAndNorms(input.qkv, input.positions, shape, input.thetas, input.norms, q, k, q, k);
    } else {
      Rope(input.qkv, input.positions, shape, input.thetas, q, k);
    }
    AttentionInput out;
    out.near_q = q;
    out.near_k = k;
    if (!spec.kv_cache()) {
      out.far_q = q;
      out.far_k = k;
    }
    out.v = input.qkv + shape.q_row() + shape.k_row();
    out.v_stride = shape.row();
    out.log_decay = input.log_decay;
    out.coefficients = input.coefficients;
    out.far_mass = input.far_mass;
    return out;
  }

  // --- steps ---

  // Runs `ops`, which calls the ops of `step` and nothing else of this backend. Does not wait for
  // them. A backend may replay its recording of an earlier step of the same shape instead.
  virtual void RunStep(const StepInput& /*step*/, const std::function<void()>& ops) { ops(); }
  // Waits until all earlier ops are complete.
  virtual void Wait() {}

  // --- sampling on the device ---

  // Whether the backend implements SampleRows. If not, the host samples from logits.
  virtual bool samples_rows() const { return false; }
  // Evaluates queries[m] on logits[m] and writes answers[m]; logits [queries.size(), width] are
  // unchanged afterwards. At most SampleQuery::kMaxRows queries. Waits for the answers.
  virtual void SampleRows(float* /*logits*/, int64_t /*width*/,
                          std::span<const SampleQuery> /*queries*/,
                          std::span<SampleResult> /*answers*/) {}
};

// Owns an array in the memory of a backend, which must outlive it.
class BackendArray {
 public:
  BackendArray() = default;
  BackendArray(Backend* backend, size_t size)
      : backend_(backend), data_(backend->NewArray(size)), size_(size) {}
  ~BackendArray() {
    if (backend_ != nullptr) backend_->DeleteArray(data_);
  }
  BackendArray(BackendArray&& other) noexcept { *this = std::move(other); }
  BackendArray& operator=(BackendArray&& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  float* data() const { return data_; }
  size_t size() const { return size_; }
  void CopyIn(const float* host) { backend_->CopyIn(host, size_, data_); }

 private:
  Backend* backend_ = nullptr;
  float* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace polysketch
