#include "bench/kernel_bench.h"

#include <algorithm>
#include <memory>

#include "base/aligned_buffer.h"
#include "bench/cost.h"
#include "bench/random_floats.h"
#include "bench/timing.h"
#include "engine/checkpoint/model_config.h"
#include "engine/model/model_format.h"
#include "kernels/new_backend.h"

namespace polysketch::bench {
namespace {

constexpr int kRuns = 15;
constexpr int kRowCounts[] = {1, 32, 512};

class KernelBench {
 public:
  KernelBench(const ModelSpec& model, const BenchOptions& options, Backend* backend,
              const ProductPeaks& peaks, const std::function<void(const KernelRow&)>& on_row)
      : model_(model),
        spec_(model.layers.front().attention),
        format_(options.formats.empty() ? DataType::kF32 : options.formats.front()),
        backend_(backend),
        peaks_(peaks),
        on_row_(on_row) {}

  void Run() {
    const int64_t D = model_.frame.width, h = model_.frame.mlp_hidden;
    for (const int rows : kRowCounts) {
      Dense("qkv", rows, D, spec_.shape().row());
      Dense("out", rows, spec_.shape().q_row(), D);
      Dense("up", rows, D, 2 * h);
      Dense("down", rows, h, D);
      if (rows <= 32) Dense("logits", rows, D, model_.frame.vocab_size);
      if (spec_.learned_sketch()) Sketch(rows);
      Attention(rows);
    }
  }

 private:
  // Median of kRuns. A run repeats the call for at least 2 ms.
  template <typename Fn>
  double Seconds(const Fn& fn) {
    fn();
    std::vector<double> seconds(kRuns);
    for (double& run : seconds) run = SecondsPerCall(2e-3, fn);
    return Median(seconds);
  }

  std::unique_ptr<const Matrix> RandomMatrix(int64_t in, int64_t out) {
    const AlignedBuffer<float> values = RandomFloats(in * out);
    return backend_->PackMatrix({values.data(), DataType::kF32, in, out}, false, format_);
  }

  void Report(const std::string& op, const std::string& shape, double seconds, double flop,
              double bytes) {
    const double fma_share = peaks_.f32 > 0 ? flop / seconds / peaks_.f32 : 0;
    on_row_({op, shape, seconds * 1e6, flop / seconds / 1e9, fma_share, bytes / seconds / 1e9});
  }

  void Dense(const std::string& name, int m, int64_t in, int64_t out) {
    const auto w = RandomMatrix(in, out);
    const AlignedBuffer<float> x = RandomFloats(m * in);
    AlignedBuffer<float> y(static_cast<size_t>(m * out));
    const double seconds =
        Seconds([&] { backend_->MatMul(x.data(), m, *w, nullptr, false, y.data()); });
    Report("matmul " + name, StrCat(m, " x ", in, " x ", out, " ", DataTypeName(format_)), seconds,
           2.0 * m * in * out, static_cast<double>(w->bytes()));
  }

  void Sketch(int m) {
    const int r = spec_.sketch_size, d = spec_.head_dim, hidden = ModelConfig::kSketchExpansion * r;
    const AlignedBuffer<float> norm = RandomFloats(2 * std::max(d, r));
    std::vector<std::unique_ptr<const Matrix>> matrices;
    SketchNetwork net;
    net.input = d;
    net.size = r;
    double bytes = 0;
    const auto new_matrix = [&](int in, int out) {
      matrices.push_back(RandomMatrix(in, out));
      bytes += static_cast<double>(matrices.back()->bytes());
      return matrices.back().get();
    };
    for (auto& branch : net.branch) {
      for (int l = 0; l < 2; ++l) {
        const int in = l == 0 ? d : r;
        branch[l] = {
            {norm.data(), norm.data() + in}, new_matrix(in, hidden), new_matrix(hidden, r)};
      }
    }
    const int64_t count = 2 * int64_t{m} * spec_.heads;
    const AlignedBuffer<float> x = RandomFloats(count * d);
    AlignedBuffer<float> y(static_cast<size_t>(count * spec_.far_dim()));
    const double seconds =
        Seconds([&] { backend_->LearnedSketch(net, x.data(), count, y.data()); });
    Report("learned_sketch", StrCat(count, " rows of q and k"), seconds,
           m * CostOfToken(model_, 0, false).sketch / static_cast<double>(model_.layers.size()),
           bytes);
  }

  // Segments of m tokens after four blocks. The state advances, so that folds are included.
  void Attention(int m) {
    const int64_t heads = spec_.heads, rows_near = m * heads * spec_.near_dim(),
                  rows_far = m * heads * spec_.far_dim();
    const AlignedBuffer<float> near = RandomFloats(2 * rows_near),
                               far = RandomFloats(2 * std::max<int64_t>(rows_far, 1));
    const AlignedBuffer<float> v = RandomFloats(m * heads * spec_.head_dim);
    AlignedBuffer<float> out(static_cast<size_t>(m * heads * spec_.head_dim));
    AttentionInput input;
    const bool own_near = spec_.mixed() || spec_.kv_cache();  // else the sketches
    input.near_q = own_near ? near.data() : far.data();
    input.near_k = own_near ? near.data() + rows_near : far.data() + rows_far;
    input.far_q = far.data();
    input.far_k = far.data() + rows_far;
    input.v = v.data();
    input.v_stride = heads * spec_.head_dim;
    const AlignedBuffer<float> coefficients = RandomFloats(heads * (spec_.power + 1));
    input.coefficients = coefficients.data();
    const auto state = backend_->NewState({&spec_, 1});
    state->Clear();
    const Segment segment{state.get(), 0, m};
    const auto run = [&] {
      backend_->Attention(spec_, 0, {&segment, 1}, input, out.data());
      state->Advance(m);
    };
    while (state->position() < 4 * spec_.block) run();
    const double context = 4.0 * spec_.block;
    const TokenCost cost = CostOfToken(model_, context, false);
    const auto state_bytes = static_cast<double>(
        backend_->ReadBytes(spec_, static_cast<int64_t>(MeanKeys(spec_, context))));
    Report("attention", StrCat(m, " tokens, ", heads, " heads"), Seconds(run),
           m * (cost.far + cost.near) / static_cast<double>(model_.layers.size()), state_bytes);
  }

  const ModelSpec& model_;
  AttentionSpec spec_;
  const DataType format_;
  Backend* backend_;
  const ProductPeaks& peaks_;
  const std::function<void(const KernelRow&)>& on_row_;
};

}  // namespace

Status RunKernelBench(const BenchOptions& options, const ProductPeaks& peaks,
                      const std::function<void(const KernelRow&)>& on_row) {
  PS_ASSIGN_OR_RETURN(ModelDefinition model, ReadModelDefinition(options.model));
  for (LayerSpec& layer : model.spec.layers) {
    layer.attention.state_format =
        FormatOfLayer(options.state_format.value_or(StateFormat::kBf16), layer.attention);
  }
  PS_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, NewCpuBackend(options.threads));
  KernelBench(model.spec, options, backend.get(), peaks, on_row).Run();
  return Status();
}

}  // namespace polysketch::bench
