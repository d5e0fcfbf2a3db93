#include "bench/timed_backend.h"

#include <algorithm>

#include "bench/timing.h"

namespace polysketch::bench {
namespace {

OpClass ClassOf(DataType type) {
  switch (type) {
    case DataType::kQ8:
    case DataType::kQ4:
      return OpClass::kInt8;
    default:
      return OpClass::kF32;
  }
}

double MatrixFlop(const Matrix& w, int64_t rows) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(w.in()) *
         static_cast<double>(w.out());
}

// Sum over the rows of a segment of the tokens that the near part of the row reads.
double NearTokens(const AttentionSpec& spec, const Segment& segment) {
  double tokens = 0;
  for (int i = 0; i < segment.rows; ++i) {
    tokens += static_cast<double>(spec.Attended(segment.state->position() + i));
  }
  return tokens;
}

}  // namespace

template <typename Fn>
void TimedBackend::Timed(std::string op, const Work& work, const Fn& fn) {
  const Stopwatch watch;
  fn();
  inner().Wait();
  const double seconds = watch.Seconds();
  OpTotals& totals = totals_[op];
  if (totals.calls == 0) {
    totals.op = std::move(op);
    totals.kind = work.kind;
  }
  ++totals.calls;
  totals.seconds += seconds;
  totals.flop += work.flop;
  totals.bytes += work.bytes;
}

std::vector<OpTotals> TimedBackend::Totals() const {
  std::vector<OpTotals> totals;
  for (const auto& [name, entry] : totals_) totals.push_back(entry);
  std::sort(totals.begin(), totals.end(),
            [](const OpTotals& a, const OpTotals& b) { return a.seconds > b.seconds; });
  return totals;
}

void TimedBackend::Embed(const Matrix& embedding, std::span<const int32_t> tokens,
                         std::span<const int64_t> positions, float* out) {
  Timed("embed", {}, [&] { inner().Embed(embedding, tokens, positions, out); });
}

void TimedBackend::Norm(const float* x, int64_t rows, int width, const NormWeights& norm,
                        float* out) {
  Timed(StrCat("norm ", width), {}, [&] { inner().Norm(x, rows, width, norm, out); });
}

void TimedBackend::MatMul(const float* x, int64_t rows, const Matrix& w, const float* bias,
                          bool accumulate, float* out) {
  Timed(StrCat("matmul ", w.in(), "x", w.out(), " ", DataTypeName(w.type())),
        {ClassOf(w.type()), MatrixFlop(w, rows), static_cast<double>(w.bytes())},
        [&] { inner().MatMul(x, rows, w, bias, accumulate, out); });
}

void TimedBackend::Rope(const float* qkv, std::span<const int64_t> positions,
                        const HeadShape& shape, std::span<const float> thetas, float* q, float* k) {
  Timed("rope", {}, [&] { inner().Rope(qkv, positions, shape, thetas, q, k); });
}

void TimedBackend::Gate(GateKind gate, const float* up, int64_t rows, int hidden, float* out) {
  Timed("gate", {}, [&] { inner().Gate(gate, up, rows, hidden, out); });
}

void TimedBackend::NormMatMul(const float* x, int64_t rows, const NormWeights& norm,
                              const Matrix& w, const float* bias, float* normed, float* out) {
  if (inner().host_memory()) return Backend::NormMatMul(x, rows, norm, w, bias, normed, out);
  Timed(StrCat("norm and matmul ", w.in(), "x", w.out(), " ", DataTypeName(w.type())),
        {ClassOf(w.type()), MatrixFlop(w, rows), static_cast<double>(w.bytes())},
        [&] { inner().NormMatMul(x, rows, norm, w, bias, normed, out); });
}

void TimedBackend::Mlp(const MlpWeights& mlp, int64_t rows, float* x, float* scratch) {
  Timed(StrCat("mlp ", mlp.up->in(), "x", mlp.up->out(), " ", DataTypeName(mlp.up->type())),
        {ClassOf(mlp.up->type()), MatrixFlop(*mlp.up, rows) + MatrixFlop(*mlp.down, rows),
         static_cast<double>(mlp.up->bytes() + mlp.down->bytes())},
        [&] { inner().Mlp(mlp, rows, x, scratch); });
}

void TimedBackend::RopeAndNorms(const float* qkv, std::span<const int64_t> positions,
                                const HeadShape& shape, std::span<const float> thetas,
                                const HeadNorms& norms, float* q, float* k, float* normed_q,
                                float* normed_k) {
  Timed("rope and norms", {}, [&] {
    inner().RopeAndNorms(qkv, positions, shape, thetas, norms, q, k, normed_q, normed_k);
  });
}

void TimedBackend::LearnedSketch(const SketchNetwork& net, const float* x, int64_t rows,
                                 float* out) {
  Work work{ClassOf(net.branch[0][0].up->type()), 0, 0};
  for (const auto& branch : net.branch) {
    for (const SketchNetwork::Level& level : branch) {
      for (const Matrix* w : {level.up, level.down}) {
        work.flop += MatrixFlop(*w, rows);
        work.bytes += static_cast<double>(w->bytes());
      }
    }
  }
  Timed("learned_sketch", work, [&] { inner().LearnedSketch(net, x, rows, out); });
}

void TimedBackend::ApplyRandomSketch(const RandomSketch& sketch, const float* x, int64_t rows,
                                     float* out) {
  Work work{OpClass::kF32, 0, 0};
  for (const auto& level : sketch.levels) {
    for (const Matrix* w : level) {
      work.flop += MatrixFlop(*w, rows);
      work.bytes += static_cast<double>(w->bytes());
    }
  }
  Timed("random_sketch", work, [&] { inner().ApplyRandomSketch(sketch, x, rows, out); });
}

void TimedBackend::AffineFeatures(const float* x, int64_t rows, int width, const float* terms,
                                  int heads, float* out) {
  Timed("affine_features", {}, [&] { inner().AffineFeatures(x, rows, width, terms, heads, out); });
}

void TimedBackend::HeadMaps(const float* x, int64_t rows, int heads, int width, const float* maps,
                            const float* biases, int size, float* out) {
  const double per_row = static_cast<double>(heads) * width * size;
  Timed("head_maps", {OpClass::kF32, 2 * per_row * static_cast<double>(rows), 4 * per_row},
        [&] { inner().HeadMaps(x, rows, heads, width, maps, biases, size, out); });
}

void TimedBackend::LinearFeatures(const float* x, int64_t rows, int width, const float* factors,
                                  int heads, float* out) {
  Timed("linear_features", {},
        [&] { inner().LinearFeatures(x, rows, width, factors, heads, out); });
}

void TimedBackend::PerformerFeatures(const Matrix& omega, const float* x, int64_t rows,
                                     float* out) {
  Timed("performer_features", {ClassOf(omega.type()), MatrixFlop(omega, rows), 0},
        [&] { inner().PerformerFeatures(omega, x, rows, out); });
}

void TimedBackend::Attention(const AttentionSpec& spec, int layer,
                             std::span<const Segment> segments, const AttentionInput& input,
                             float* out) {
  const double heads = spec.heads, kv_heads = spec.key_heads(), d = spec.head_dim,
               features = spec.features();
  Work work{OpClass::kF32, 0, 0};
  for (const Segment& segment : segments) {
    const double near = NearTokens(spec, segment);
    work.flop += heads * near * 2 * (spec.near_dim() + d);
    work.flop += (heads + kv_heads) * segment.rows * 2 * features * d;
    // The last row's, which those before it share.
    const int64_t last = segment.state->position() + segment.rows - 1;
    work.bytes += static_cast<double>(inner().ReadBytes(spec, spec.Attended(last)));
  }
  Timed("attention", work, [&] { inner().Attention(spec, layer, segments, input, out); });
}

void TimedBackend::SampleRows(float* logits, int64_t width, std::span<const SampleQuery> queries,
                              std::span<SampleResult> answers) {
  Timed("sample_rows", {}, [&] { inner().SampleRows(logits, width, queries, answers); });
}

void TimedBackend::LogSigmoid(const float* x, int64_t size, float* out) {
  Timed("log_sigmoid", {}, [&] { inner().LogSigmoid(x, size, out); });
}

void TimedBackend::LogSumExp(const float* x, int64_t rows, int64_t width, float* out) {
  Timed("log_sum_exp", {}, [&] { inner().LogSumExp(x, rows, width, out); });
}

}  // namespace polysketch::bench
