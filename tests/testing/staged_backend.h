// A backend for tests that pass arrays in host memory: every op copies its inputs to arrays of the
// inner backend, and its results back. So one test serves backends with and without memory of their
// own.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/forwarding_backend.h"

namespace polysketch::testing {

class StagedBackend : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Backend& device() { return inner(); }

  ThreadPool* pool() override { return nullptr; }
  bool host_memory() const override { return true; }
  float* NewArray(size_t size) override { return Backend::NewArray(size); }
  void DeleteArray(float* array) override { Backend::DeleteArray(array); }
  void CopyIn(const float* host, size_t size, float* array) override {
    Backend::CopyIn(host, size, array);
  }
  void CopyOut(const float* array, size_t size, float* host) override {
    Backend::CopyOut(array, size, host);
  }
  void Reserve(std::span<const AttentionSpec>, int64_t, int64_t, size_t,
               const std::function<void()>&) override {}
  bool samples_rows() const override { return false; }

  void Embed(const Matrix& embedding, std::span<const int32_t> tokens,
             std::span<const int64_t> positions, float* out) override {
    Out y(this, out, static_cast<int64_t>(tokens.size()) * embedding.in());
    inner().Embed(embedding, tokens, positions, y.data());
  }
  void Norm(const float* x, int64_t rows, int width, const NormWeights& norm, float* out) override {
    const NormArrays staged(this, norm, width);
    if (x == out) {
      Out y(this, out, rows * width);
      inner().Norm(y.data(), rows, width, staged.norm, y.data());
      return;
    }
    const In from(this, x, rows * width);
    Out y(this, out, rows * width);
    inner().Norm(from.data(), rows, width, staged.norm, y.data());
  }
  void MatMul(const float* x, int64_t rows, const Matrix& w, const float* bias, bool accumulate,
              float* out) override {
    const In from(this, x, rows * w.in());
    const In added(this, bias, bias == nullptr ? 0 : w.out());
    Out y(this, out, rows * w.out());
    inner().MatMul(from.data(), rows, w, bias == nullptr ? nullptr : added.data(), accumulate,
                   y.data());
  }
  void Rope(const float* qkv, std::span<const int64_t> positions, const HeadShape& shape,
            std::span<const float> thetas, float* q, float* k) override {
    const int64_t rows = std::ssize(positions);
    const In from(this, qkv, rows * shape.row());
    Out to_q(this, q, rows * shape.q_row()), to_k(this, k, rows * shape.k_row());
    inner().Rope(from.data(), positions, shape, thetas, to_q.data(), to_k.data());
  }
  void Gate(GateKind gate, const float* up, int64_t rows, int hidden, float* out) override {
    const In from(this, up, rows * UpColumns(gate, hidden));
    Out y(this, out, rows * hidden);
    inner().Gate(gate, from.data(), rows, hidden, y.data());
  }
  void NormMatMul(const float* x, int64_t rows, const NormWeights& norm, const Matrix& w,
                  const float* bias, float* /*normed*/, float* out) override {
    const NormArrays staged(this, norm, w.in());
    const OptionalIn added(this, bias, w.out());
    const In from(this, x, rows * w.in());
    Out y(this, out, rows * w.out());
    BackendArray normed(&inner(), static_cast<size_t>(rows * w.in()));
    inner().NormMatMul(from.data(), rows, staged.norm, w, added.data(), normed.data(), y.data());
  }
  void NormMatMulDecay(const float* x, int64_t rows, const NormWeights& norm, const Matrix& w,
                       const float* bias, const Matrix& gate, const float* gate_bias,
                       float* /*normed*/, float* out, float* log_decay) override {
    const NormArrays staged(this, norm, w.in());
    const OptionalIn added(this, bias, w.out()), to_gate(this, gate_bias, gate.out());
    const In from(this, x, rows * w.in());
    Out y(this, out, rows * w.out()), decays(this, log_decay, rows * gate.out());
    BackendArray normed(&inner(), static_cast<size_t>(rows * w.in()));
    inner().NormMatMulDecay(from.data(), rows, staged.norm, w, added.data(), gate, to_gate.data(),
                            normed.data(), y.data(), decays.data());
  }
  void Mlp(const MlpWeights& mlp, int64_t rows, float* x, float* /*scratch*/) override {
    const int64_t width = mlp.up->in();
    const NormArrays norm(this, mlp.norm, width);
    const OptionalIn up_bias(this, mlp.up_bias, mlp.up->out());
    const OptionalIn down_bias(this, mlp.down_bias, mlp.down->out());
    Out y(this, x, rows * width);
    BackendArray scratch(&inner(), static_cast<size_t>(rows * (width + 3 * mlp.down->in())));
    inner().Mlp({norm.norm, mlp.up, mlp.down, mlp.gate, up_bias.data(), down_bias.data()}, rows,
                y.data(), scratch.data());
  }
  // normed_q and normed_k are arrays of their own, or q and k.
  void RopeAndNorms(const float* qkv, std::span<const int64_t> positions, const HeadShape& shape,
                    std::span<const float> thetas, const HeadNorms& norms, float* q, float* k,
                    float* normed_q, float* normed_k) override {
    const int64_t rows = std::ssize(positions);
    const In from(this, qkv, rows * shape.row());
    const NormArrays q_norm(this, norms.q, shape.head_dim), k_norm(this, norms.k, shape.head_dim);
    const HeadNorms staged{q_norm.norm, k_norm.norm, norms.before_rotation};
    Out to_normed_q(this, normed_q, rows * shape.q_row());
    Out to_normed_k(this, normed_k, rows * shape.k_row());
    if (normed_q == q || norms.before_rotation) {
      inner().RopeAndNorms(from.data(), positions, shape, thetas, staged, to_normed_q.data(),
                           to_normed_k.data(), to_normed_q.data(), to_normed_k.data());
      return;
    }
    Out to_q(this, q, rows * shape.q_row()), to_k(this, k, rows * shape.k_row());
    inner().RopeAndNorms(from.data(), positions, shape, thetas, staged, to_q.data(), to_k.data(),
                         to_normed_q.data(), to_normed_k.data());
  }
  void LearnedSketch(const SketchNetwork& net, const float* x, int64_t rows, float* out) override {
    const Network staged(this, net);
    const In from(this, x, rows * net.input);
    Out y(this, out, rows * Padded(net.size));
    inner().LearnedSketch(staged.network, from.data(), rows, y.data());
  }
  void ApplyRandomSketch(const RandomSketch& sketch, const float* x, int64_t rows,
                         float* out) override {
    const In from(this, x, rows * sketch.input);
    Out y(this, out, rows * Padded(sketch.size));
    inner().ApplyRandomSketch(sketch, from.data(), rows, y.data());
  }
  void LinearFeatures(const float* x, int64_t rows, int width, const float* factors, int heads,
                      float* out) override {
    const In from(this, x, rows * width), staged(this, factors, factors == nullptr ? 0 : heads);
    Out y(this, out, rows * width);
    inner().LinearFeatures(from.data(), rows, width, factors == nullptr ? nullptr : staged.data(),
                           heads, y.data());
  }
  void PerformerFeatures(const Matrix& omega, const float* x, int64_t rows, float* out) override {
    const In from(this, x, rows * omega.in());
    Out y(this, out, rows * omega.out());
    inner().PerformerFeatures(omega, from.data(), rows, y.data());
  }
  void AffineFeatures(const float* x, int64_t rows, int width, const float* terms, int heads,
                      float* out) override {
    const In from(this, x, rows * width), staged(this, terms, terms == nullptr ? 0 : 2 * heads);
    Out y(this, out, rows * Padded(width + 1));
    inner().AffineFeatures(from.data(), rows, width, terms == nullptr ? nullptr : staged.data(),
                           heads, y.data());
  }
  void HeadMaps(const float* x, int64_t rows, int heads, int width, const float* maps,
                const float* biases, int size, float* out) override {
    const In from(this, x, rows * heads * width), staged(this, maps, int64_t{heads} * width * size),
        bias(this, biases, int64_t{heads} * size);
    Out y(this, out, rows * heads * size);
    inner().HeadMaps(from.data(), rows, heads, width, staged.data(), bias.data(), size, y.data());
  }
  void Attention(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                 const AttentionInput& input, float* out) override {
    const int64_t rows = RowsOf(segments);
    Out y(this, out, rows * spec.heads * spec.head_dim);
    WithStaged(spec, rows, input, [&](const AttentionInput& staged) {
      inner().Attention(spec, layer, segments, staged, y.data());
    });
  }
  void AttentionMatMul(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                       const AttentionInput& input, int64_t rows, const Matrix& w,
                       float* /*attended*/, float* x) override {
    Out y(this, x, rows * w.out());
    BackendArray attended(&inner(), static_cast<size_t>(rows * w.in()));
    WithStaged(spec, rows, input, [&](const AttentionInput& staged) {
      inner().AttentionMatMul(spec, layer, segments, staged, rows, w, attended.data(), y.data());
    });
  }
  void HeadAttention(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                     const HeadInput& input, const Matrix& w, const float* bias,
                     float* x) override {
    const auto rows = std::ssize(input.positions);
    const HeadShape shape = spec.shape();
    const bool has_coefficients = spec.kind == AttentionKind::kPolynomialSquare;
    const In qkv(this, input.qkv, rows * shape.row());
    const In log_decay(this, input.log_decay, spec.decay_gate ? rows * shape.kv_heads : 0);
    const In coefficients(this, input.coefficients,
                          has_coefficients ? int64_t{spec.heads} * (spec.power + 1) : 0);
    const NormArrays q_norm(this, input.norms.q, spec.head_dim);
    const NormArrays k_norm(this, input.norms.k, spec.head_dim);
    const OptionalIn added(this, bias, w.out());
    const BackendArray qk(&inner(), static_cast<size_t>(rows * (shape.q_row() + shape.k_row())));
    const BackendArray attended(&inner(), static_cast<size_t>(rows * w.in()));
    Out y(this, x, rows * w.out());
    inner().HeadAttention(spec, layer, segments,
                          {.qkv = qkv.data(),
                           .positions = input.positions,
                           .thetas = input.thetas,
                           .norms = {q_norm.norm, k_norm.norm, input.norms.before_rotation},
                           .log_decay = log_decay.data(),
                           .coefficients = coefficients.data(),
                           .qk = qk.data(),
                           .attended = attended.data()},
                          w, added.data(), y.data());
  }
  void MixedSketchAttention(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                            const MixedSketchInput& input, const Matrix& w, float* x) override {
    const auto rows = std::ssize(input.positions);
    const int64_t size = rows * spec.heads * spec.head_dim;
    const auto scratch = [&](int64_t floats) {
      return BackendArray(&inner(), static_cast<size_t>(floats));
    };
    const BackendArray qk = scratch(2 * size), near_qk = scratch(2 * size);
    const BackendArray sketch = scratch(2 * rows * spec.heads * spec.far_dim());
    const BackendArray attended = scratch(size);
    const In qkv(this, input.qkv, 3 * size);
    const In log_decay(this, input.log_decay, spec.decay_gate ? rows * spec.heads : 0);
    const Network network(this, *input.network);
    const NormArrays near_q_norm(this, input.near_q_norm, spec.head_dim);
    const NormArrays near_k_norm(this, input.near_k_norm, spec.head_dim);
    Out y(this, x, rows * w.out());
    inner().MixedSketchAttention(spec, layer, segments,
                                 {.qkv = qkv.data(),
                                  .positions = input.positions,
                                  .thetas = input.thetas,
                                  .near_q_norm = near_q_norm.norm,
                                  .near_k_norm = near_k_norm.norm,
                                  .network = &network.network,
                                  .log_decay = log_decay.data(),
                                  .qk = qk.data(),
                                  .near_qk = near_qk.data(),
                                  .sketch = sketch.data(),
                                  .attended = attended.data()},
                                 w, y.data());
  }
  void LogSigmoid(const float* x, int64_t size, float* out) override {
    const In from(this, x, size);
    Out y(this, out, size);
    inner().LogSigmoid(from.data(), size, y.data());
  }
  void LogSumExp(const float* x, int64_t rows, int64_t width, float* out) override {
    const In from(this, x, rows * width);
    Out y(this, out, rows);
    inner().LogSumExp(from.data(), rows, width, y.data());
  }

 private:
  static int64_t Padded(int64_t r) { return (r + 7) / 8 * 8; }
  static int64_t RowsOf(std::span<const Segment> segments) {
    int64_t rows = 0;
    for (const Segment& segment : segments) {
      rows = std::max<int64_t>(rows, segment.first_row + segment.rows);
    }
    return rows;
  }

  // Calls run with arrays of the inner backend.
  template <typename Run>
  void WithStaged(const AttentionSpec& spec, int64_t rows, const AttentionInput& input,
                  const Run& run) {
    const int64_t heads = rows * spec.heads, kv_heads = rows * spec.key_heads();
    const In near_q(this, input.near_q, heads * spec.near_dim());
    const In near_k(this, input.near_k, kv_heads * spec.near_dim());
    const In far_q(this, input.far_q, heads * spec.far_dim());
    const In far_k(this, input.far_k, kv_heads * spec.far_dim());
    const In v(this, input.v, (rows - 1) * input.v_stride + spec.shape().k_row());
    const In log_decay(this, input.log_decay, spec.decay_gate ? kv_heads : 0);
    const bool has_coefficients = spec.kind == AttentionKind::kPolynomialSquare;
    const In coefficients(this, input.coefficients,
                          has_coefficients ? int64_t{spec.heads} * (spec.power + 1) : 0);
    const AttentionInput staged{near_q.data(),    near_k.data(),      far_q.data(),
                                far_k.data(),     v.data(),           input.v_stride,
                                log_decay.data(), coefficients.data()};
    run(staged);
  }

  class In {
   public:
    In(StagedBackend* owner, const float* host, int64_t size)
        : array_(&owner->inner(), static_cast<size_t>(size)) {
      if (size > 0) array_.CopyIn(host);
    }
    const float* data() const { return array_.data(); }

   private:
    BackendArray array_;
  };

  // The same for an array that may be null.
  class OptionalIn {
   public:
    OptionalIn(StagedBackend* owner, const float* host, int64_t size)
        : null_(host == nullptr), array_(owner, host, null_ ? 0 : size) {}
    const float* data() const { return null_ ? nullptr : array_.data(); }

   private:
    const bool null_;
    const In array_;
  };

  // A norm with weights in the memory of the inner backend.
  struct NormArrays {
    NormArrays(StagedBackend* owner, const NormWeights& host, int64_t width)
        : scale(owner, host.scale, width), bias(owner, host.bias, width), norm(host) {
      norm.scale = scale.data();
      norm.bias = bias.data();
    }
    const OptionalIn scale, bias;
    NormWeights norm;
  };

  // A sketch network with norms in the memory of the inner backend.
  struct Network {
    Network(StagedBackend* owner, const SketchNetwork& net) : network(net) {
      for (auto& branch : network.branch) {
        for (int level = 0; level < 2; ++level) {
          const int width = level == 0 ? net.input : net.size;
          for (const float** array : {&branch[level].norm.scale, &branch[level].norm.bias}) {
            norms.push_back(std::make_unique<In>(owner, *array, width));
            *array = norms.back()->data();
          }
        }
      }
    }
    SketchNetwork network;
    std::vector<std::unique_ptr<In>> norms;
  };

  // Copies the previous contents too, since an op may read them.
  class Out {
   public:
    Out(StagedBackend* owner, float* host, int64_t size)
        : backend_(&owner->inner()), host_(host), array_(backend_, size) {
      array_.CopyIn(host);
    }
    ~Out() { backend_->CopyOut(array_.data(), array_.size(), host_); }
    Out(const Out&) = delete;
    Out& operator=(const Out&) = delete;
    float* data() const { return array_.data(); }

   private:
    Backend* backend_;
    float* host_;
    BackendArray array_;
  };
};

}  // namespace polysketch::testing
