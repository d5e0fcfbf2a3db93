#include "bench/model_bench.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "bench/ceilings.h"
#include "bench/cost.h"
#include "bench/timing.h"
#include "engine/model/polysketch_model.h"
#include "kernels/new_backend.h"

namespace polysketch::bench {
namespace {

// A prompt longer than this is measured once: it averages over itself.
constexpr int64_t kLongPrompt = 16384;

class ModelBench {
 public:
  // profile: the backend itself where ops are timed, else null.
  ModelBench(const BenchOptions& options, std::unique_ptr<Backend> backend, TimedBackend* profile,
             std::unique_ptr<PolysketchModel> model, std::string weights, const ProductPeaks& peaks,
             const std::function<void(const BenchRow&)>& on_row)
      : options_(options),
        backend_(std::move(backend)),
        profile_(profile),
        model_(std::move(model)),
        weights_(std::move(weights)),
        peaks_(peaks),
        on_row_(on_row),
        hidden_(static_cast<size_t>(options.max_step_tokens) * model_->hidden_size()) {}

  void Run() {
    if (Has("prefill")) {
      for (const int64_t context : options_.prefill_contexts) Prefill(context);
    }
    if (!Has("decode")) return;
    for (const int64_t context : options_.decode_contexts) {
      std::unique_ptr<SequenceState> state = StateAt(context);
      Decode(context, 1, *state);
      for (const int batch : options_.batches) Decode(context, batch, *state);
    }
  }

 private:
  bool Has(std::string_view stage) const {
    return std::find(options_.stages.begin(), options_.stages.end(), stage) !=
           options_.stages.end();
  }

  void StartProfile() {
    if (profile_ != nullptr) profile_->Restart();
  }

  int32_t NextToken() {
    // Any tokens do: the work does not depend on them. A linear congruential generator keeps runs
    // equal.
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int32_t>((random_ >> 33) % static_cast<uint64_t>(model_->vocab_size()));
  }

  void Feed(SequenceState* state, int64_t tokens) {
    std::vector<int32_t> chunk;
    while (tokens > 0) {
      chunk.resize(static_cast<size_t>(std::min<int64_t>(tokens, options_.max_step_tokens)));
      for (int32_t& token : chunk) token = NextToken();
      model_->Step(OneSegment(state, chunk, OutputRows::kLast), hidden_.data());
      tokens -= static_cast<int64_t>(chunk.size());
    }
  }

  // Prefill leaves the states that decoding starts from, so that no context is processed twice.
  std::unique_ptr<SequenceState> StateAt(int64_t context) {
    for (auto& [tokens, state] : states_) {
      if (tokens == context) return state->Clone();
    }
    std::unique_ptr<SequenceState> state = model_->NewState();
    Feed(state.get(), context);
    return state;
  }

  void Prefill(int64_t context) {
    const int repeats = context > kLongPrompt ? 1 : options_.repeats;
    std::unique_ptr<SequenceState> state = model_->NewState();
    AlignedBuffer<float> logits(static_cast<size_t>(model_->vocab_size()));
    Feed(state.get(),
         std::min<int64_t>(context, options_.max_step_tokens));  // warm caches and pages
    std::vector<double> seconds;
    for (int i = 0; i < repeats; ++i) {
      state->Reset();
      StartProfile();
      const Stopwatch watch;
      Feed(state.get(), context);
      model_->Logits(hidden_.data(), 1, logits.data());  // the first token's: a prefill's end
      seconds.push_back(watch.Seconds());
    }
    BenchRow row = NewRow("prefill", context, 1);
    row.tokens = context;
    row.seconds = Median(seconds);
    Complete(&row, CostOfToken(model_->config(), model_->attention_spec(),
                               static_cast<double>(context) / 2, false));
    const auto& wanted = options_.decode_contexts;
    if (Has("decode") && std::find(wanted.begin(), wanted.end(), context) != wanted.end()) {
      states_.emplace_back(context, std::move(state));
    }
  }

  // A decode step as it is served: the highest logits' tokens from a device that finds them, or
  // logits.
  void StepAndSample(const Batch& batch, float* logits) {
    const size_t rows = batch.segments().size();
    if (!model_->samples_rows()) {
      model_->Step(batch, hidden_.data());
      model_->Logits(hidden_.data(), static_cast<int64_t>(rows), logits);
      return;
    }
    std::vector<SampleQuery> queries(rows);
    for (SampleQuery& query : queries) query.kind = SampleQuery::Kind::kArgmax;
    std::vector<SampleResult> results(rows);
    model_->Step(batch, nullptr);
    model_->SampleRows(0, queries, results, logits, nullptr);
  }

  // Whole blocks, so that folds are counted as often as they happen.
  void Decode(int64_t context, int batch, const SequenceState& start) {
    const int64_t steps = model_->config().grain_size;
    std::vector<std::unique_ptr<SequenceState>> states;
    states.reserve(batch);
    for (int i = 0; i < batch; ++i) states.push_back(start.Clone());
    Batch tokens;
    AlignedBuffer<float> logits(static_cast<size_t>(batch) * model_->vocab_size());
    const auto step = [&] {
      tokens.Clear();
      for (const auto& state : states) {
        const int32_t token = NextToken();
        tokens.Add(state.get(), {&token, 1}, OutputRows::kLast);
      }
      StepAndSample(tokens, logits.data());
    };
    for (int i = 0; i < 4; ++i) step();
    BenchRow row = NewRow("decode", context, batch);
    row.tokens = steps * batch;
    row.step_bytes =
        static_cast<double>(model_->weight_bytes()) +
        batch * static_cast<double>(model_->decode_step_bytes() - model_->weight_bytes());
    MeasureBlocks(steps, step, &row);
    Complete(&row, CostOfToken(model_->config(), model_->attention_spec(),
                               static_cast<double>(context), true));
  }

  bool OnDevice() const { return !backend_->host_memory(); }

  template <typename Fn>
  void MeasureBlocks(int64_t steps, const Fn& step, BenchRow* row) {
    if (OnDevice()) {
      MeasureDeviceBlocks(steps, step, row);
    } else {
      MeasureHostBlocks(steps, step, row);
    }
  }

  template <typename Fn>
  void MeasureDeviceBlocks(int64_t steps, const Fn& step, BenchRow* row) {
    std::vector<double> seconds;
    StartProfile();
    for (int block = 0; block < options_.decode_blocks; ++block) {
      const Stopwatch watch;
      for (int64_t i = 0; i < steps; ++i) step();
      seconds.push_back(watch.Seconds());
    }
    row->seconds = Median(seconds);
    row->gbyte_per_s = row->step_bytes * static_cast<double>(steps) / row->seconds / 1e9;
    row->bandwidth = options_.device_bandwidth / 1e9;
    row->bandwidth_share = row->bandwidth > 0 ? row->gbyte_per_s / row->bandwidth : 0;
  }

  // Blocks by turns with the machine's bandwidth: on a shared host it moves within seconds, and a
  // share means something only beside the bandwidth of its own moment.
  template <typename Fn>
  void MeasureHostBlocks(int64_t steps, const Fn& step, BenchRow* row) {
    const BandwidthProbe probe(static_cast<size_t>(row->step_bytes));
    ThreadPool pool(options_.threads), alone(1);
    std::vector<double> seconds, shares, bandwidths{probe.BytesPerSecond(&pool)};
    StartProfile();
    for (int block = 0; block < options_.decode_blocks; ++block) {
      const Stopwatch watch;
      for (int64_t i = 0; i < steps; ++i) step();
      seconds.push_back(watch.Seconds());
      bandwidths.push_back(probe.BytesPerSecond(&pool));
      const double around = (bandwidths[block] + bandwidths[block + 1]) / 2;
      shares.push_back(row->step_bytes * static_cast<double>(steps) / seconds.back() / around);
    }
    row->seconds = Median(seconds);
    row->gbyte_per_s = row->step_bytes * static_cast<double>(steps) / row->seconds / 1e9;
    row->bandwidth = Median(bandwidths) / 1e9;
    row->bandwidth_1 = probe.BytesPerSecond(&alone) / 1e9;
    row->bandwidth_share = Median(shares);
  }

  BenchRow NewRow(const std::string& stage, int64_t context, int batch) const {
    BenchRow row;
    row.stage = stage;
    row.context = context;
    row.batch = batch;
    row.weights = weights_;
    row.state = model_->attention_spec().state_format == StateFormat::kF32 ? "f32" : "bf16";
    row.threads = options_.threads;
    return row;
  }

  void Complete(BenchRow* row, const TokenCost& cost) {
    row->tokens_per_s = static_cast<double>(row->tokens) / row->seconds;
    row->gflop_per_s = row->tokens_per_s * cost.total() / 1e9;
    if (profile_ != nullptr) row->ops = profile_->Totals();
    const double peak = OnDevice() ? options_.device_flops : peaks_.f32;
    row->fma_share = peak > 0 ? row->gflop_per_s * 1e9 / peak : 0;
    rows_.push_back(*row);
    on_row_(*row);
  }

  const BenchOptions& options_;
  std::unique_ptr<Backend> backend_;
  TimedBackend* const profile_;
  std::unique_ptr<PolysketchModel> model_;
  const std::string weights_;
  const ProductPeaks& peaks_;
  const std::function<void(const BenchRow&)>& on_row_;
  AlignedBuffer<float> hidden_;
  uint64_t random_ = 1;
  std::vector<std::pair<int64_t, std::unique_ptr<SequenceState>>> states_;
  std::vector<BenchRow> rows_;

 public:
  const std::vector<BenchRow>& rows() const { return rows_; }
};

Result<std::unique_ptr<Backend>> MakeBackend(const BenchOptions& options) {
  if (options.device == "reference") return NewReferenceBackend();
  if (options.device == "cuda") return NewCudaBackend();
  return NewCpuBackend(options.threads);
}

}  // namespace

Result<std::vector<BenchRow>> RunModelBench(const BenchOptions& options, const ProductPeaks& peaks,
                                            const std::function<void(const BenchRow&)>& on_row) {
  std::vector<BenchRow> rows;
  for (const std::optional<DataType>& format : options.formats) {
    PS_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, MakeBackend(options));
    TimedBackend* profile = nullptr;
    if (options.profile) {
      auto timed = std::make_unique<TimedBackend>(std::move(backend));
      profile = timed.get();
      backend = std::move(timed);
    }
    LoadOptions load;
    load.weights = format;
    load.state_format = options.state_format;
    load.max_step_tokens =
        std::max(options.max_step_tokens,
                 options.batches.empty()
                     ? 1
                     : *std::max_element(options.batches.begin(), options.batches.end()));
    PS_ASSIGN_OR_RETURN(std::unique_ptr<PolysketchModel> model,
                        PolysketchModel::Load(options.model, backend.get(), load));
    const std::string name = format ? std::string(DataTypeName(*format)) : "stored";
    ModelBench bench(options, std::move(backend), profile, std::move(model), name, peaks, on_row);
    bench.Run();
    rows.insert(rows.end(), bench.rows().begin(), bench.rows().end());
  }
  return rows;
}

}  // namespace polysketch::bench
