#include "bench/model_bench.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "bench/ceilings.h"
#include "bench/cost.h"
#include "bench/random_floats.h"
#include "bench/timing.h"
#include "engine/model/folder_model.h"
#include "kernels/new_backend.h"
#include "kernels/saved_state.h"

namespace polysketch::bench {
namespace {

// A longer prompt is measured once: its chunks are the repetitions.
constexpr int64_t kLongPrompt = 16384;

class ModelBench {
 public:
  // profile: the backend if it measures ops, else null.
  ModelBench(const BenchOptions& options, std::unique_ptr<Backend> backend, TimedBackend* profile,
             std::unique_ptr<FolderModel> model, std::string weights, const ProductPeaks& peaks,
             const std::function<void(const BenchRow&)>& on_row)
      : options_(options),
        backend_(std::move(backend)),
        profile_(profile),
        model_(std::move(model)),
        weights_(std::move(weights)),
        peaks_(peaks),
        on_row_(on_row),
        hidden_(static_cast<size_t>(model_->max_step_tokens()) * model_->hidden_size()) {}

  Status Run() {
    if (Has("prefill")) {
      for (const int64_t context : options_.prefill_contexts) PS_RETURN_IF_ERROR(Prefill(context));
    }
    if (!Has("decode")) return Status();
    for (const int64_t context : options_.decode_contexts) {
      PS_ASSIGN_OR_RETURN(std::unique_ptr<SequenceState> state, StateAt(context));
      PS_RETURN_IF_ERROR(Decode(context, 1, *state));
      for (const int batch : options_.batches) PS_RETURN_IF_ERROR(Decode(context, batch, *state));
    }
    return Status();
  }

 private:
  bool Has(std::string_view stage) const { return std::ranges::count(options_.stages, stage) > 0; }

  // The work does not depend on the tokens.
  int32_t NextToken() {
    return static_cast<int32_t>((random_() >> 33) % static_cast<uint64_t>(model_->vocab_size()));
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

  // Returns the state that the prefill measurement of this length left, if there was one.
  Result<std::unique_ptr<SequenceState>> StateAt(int64_t context) {
    for (auto& [tokens, state] : states_) {
      if (tokens == context) return state->Clone();
    }
    std::unique_ptr<SequenceState> state = model_->NewState();
    if (options_.random_states) {
      PS_RETURN_IF_ERROR(state->Load(context, RandomValues(context)));
      return state;
    }
    state->Clear();
    Feed(state.get(), context);
    return state;
  }

  // The saved values of a state: small positive ones, with which no weight overflows or vanishes.
  std::vector<uint8_t> RandomValues(int64_t context) {
    std::vector<uint8_t> bytes(SavedStateBytes(model_->attention(), context));
    for (size_t i = 0; i < bytes.size(); i += sizeof(float)) {
      const float value = static_cast<float>(random_() >> 40) * 0x1p-34f;  // below 2^-10
      std::memcpy(&bytes[i], &value, sizeof(float));
    }
    return bytes;
  }

  Status Prefill(int64_t context) {
    const int repeats = context > kLongPrompt ? 1 : options_.repeats;
    std::unique_ptr<SequenceState> state = model_->NewState();
    state->Clear();
    AlignedBuffer<float> logits(static_cast<size_t>(model_->vocab_size()));
    Feed(state.get(), std::min<int64_t>(context, options_.max_step_tokens));  // warm-up
    std::vector<double> seconds;
    for (int i = 0; i < repeats; ++i) {
      state->Reset();
      state->Clear();
      if (profile_ != nullptr) profile_->Restart();
      const Stopwatch watch;
      Feed(state.get(), context);
      model_->Logits(hidden_.data(), 1, logits.data());  // of the first output token
      seconds.push_back(watch.Seconds());
    }
    BenchRow row = NewRow("prefill", context, 1);
    row.tokens = context;
    row.seconds = Median(seconds);
    PS_RETURN_IF_ERROR(
        Complete(&row, CostOfToken(model_->spec(), static_cast<double>(context) / 2, false)));
    if (Has("decode") && std::ranges::count(options_.decode_contexts, context) > 0) {
      states_.emplace_back(context, std::move(state));
    }
    return Status();
  }

  // As the server steps: argmax on a device that samples, else logits.
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

  // Whole blocks, so that each has one fold.
  Status Decode(int64_t context, int batch, const SequenceState& start) {
    const int64_t steps = model_->attention().front().block;
    std::vector<std::unique_ptr<SequenceState>> states;
    states.reserve(batch);
    std::vector<uint8_t> saved(options_.own_caches && batch > 1 ? start.SavedBytes() : 0);
    if (!saved.empty()) start.Save(saved);
    for (int i = 0; i < batch; ++i) {
      states.push_back(saved.empty() ? start.Clone() : model_->NewState());
      if (!saved.empty()) PS_RETURN_IF_ERROR(states.back()->Load(context, saved));
    }
    saved = {};
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
    row.state_bytes = static_cast<int64_t>(start.bytes());
    row.step_bytes = static_cast<double>(model_->weight_bytes() + StateBytesOfStep(context, batch));
    MeasureBlocks(steps, step, &row);
    return Complete(&row, CostOfToken(model_->spec(), static_cast<double>(context), true));
  }

  // Bytes of states that a decode step of `batch` sequences after `context` tokens must read. Blocks of caches that
  // clones share are read once.
  int64_t StateBytesOfStep(int64_t context, int64_t batch) const {
    int64_t bytes = 0;
    for (const AttentionSpec& layer : model_->attention()) {
      const bool shared = layer.kv_cache() && !OnDevice() && !options_.own_caches;
      const auto keys = static_cast<int64_t>(MeanKeys(layer, static_cast<double>(context)));
      const int64_t far = backend_->ReadBytes(layer, 0);
      bytes += batch * far + (shared ? 1 : batch) * (backend_->ReadBytes(layer, keys) - far);
    }
    return bytes;
  }

  bool OnDevice() const { return !backend_->host_memory(); }

  // On the host, blocks alternate with bandwidth measurements: the bandwidth of a shared host
  // changes within seconds.
  template <typename Fn>
  void MeasureBlocks(int64_t steps, const Fn& step, BenchRow* row) {
    std::optional<BandwidthProbe> probe;
    ThreadPool pool(options_.threads), one_thread(1);
    if (!OnDevice()) probe.emplace(static_cast<size_t>(row->step_bytes));
    const auto bandwidth = [&] {
      return probe ? probe->BytesPerSecond(&pool) : options_.device_bandwidth;
    };
    const double block_bytes = row->step_bytes * static_cast<double>(steps);
    std::vector<double> seconds, shares, bandwidths{bandwidth()};
    for (int block = 0; block < options_.decode_blocks; ++block) {
      if (profile_ != nullptr) profile_->Restart();
      const Stopwatch watch;
      for (int64_t i = 0; i < steps; ++i) step();
      seconds.push_back(watch.Seconds());
      bandwidths.push_back(bandwidth());
      const double around = (bandwidths[block] + bandwidths[block + 1]) / 2;
      shares.push_back(around > 0 ? block_bytes / seconds.back() / around : 0);
    }
    row->seconds = Median(seconds);
    row->gbyte_per_s = block_bytes / row->seconds / 1e9;
    row->bandwidth = Median(bandwidths) / 1e9;
    if (probe) row->bandwidth_1 = probe->BytesPerSecond(&one_thread) / 1e9;
    row->bandwidth_share = Median(shares);
  }

  BenchRow NewRow(const std::string& stage, int64_t context, int batch) const {
    return {.stage = stage,
            .attention = std::string(AttentionKindName(model_->attention().front().kind)),
            .context = context,
            .batch = batch,
            .weights = weights_,
            .state = std::string(StateFormatName(FormatOfModel(model_->attention()))),
            .threads = options_.threads};
  }

  // After an error of the device, steps end at once: their time is none of a row.
  Status Complete(BenchRow* row, const TokenCost& cost) {
    PS_RETURN_IF_ERROR(model_->status());
    row->tokens_per_s = static_cast<double>(row->tokens) / row->seconds;
    row->gflop_per_s = row->tokens_per_s * cost.total() / 1e9;
    if (profile_ != nullptr) row->ops = profile_->Totals();
    const double peak = OnDevice() ? options_.device_flops : peaks_.f32;
    row->fma_share = peak > 0 ? row->gflop_per_s * 1e9 / peak : 0;
    on_row_(*row);
    return Status();
  }

  const BenchOptions& options_;
  std::unique_ptr<Backend> backend_;
  TimedBackend* const profile_;
  std::unique_ptr<FolderModel> model_;
  const std::string weights_;
  const ProductPeaks& peaks_;
  const std::function<void(const BenchRow&)>& on_row_;
  AlignedBuffer<float> hidden_;
  RandomBits random_{1};
  std::vector<std::pair<int64_t, std::unique_ptr<SequenceState>>> states_;
};

Result<std::unique_ptr<Backend>> MakeBackend(const BenchOptions& options) {
  if (options.device == "reference") return NewReferenceBackend();
  if (options.device == "cuda") return NewCudaBackend();
  return NewCpuBackend(options.threads);
}

}  // namespace

Status RunModelBench(const BenchOptions& options, const ProductPeaks& peaks,
                     const std::function<void(const BenchRow&)>& on_row) {
  LoadOptions load;
  load.state_format = options.state_format;
  load.max_step_tokens = options.max_step_tokens;
  for (const int batch : options.batches) {
    load.max_step_tokens = std::max(load.max_step_tokens, batch);
  }
  for (const DataType format : options.formats) {
    PS_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, MakeBackend(options));
    TimedBackend* profile = nullptr;
    if (options.profile) {
      auto timed = std::make_unique<TimedBackend>(std::move(backend));
      profile = timed.get();
      backend = std::move(timed);
    }
    load.weights = format;
    PS_ASSIGN_OR_RETURN(std::unique_ptr<FolderModel> model,
                        FolderModel::Load(options.model, backend.get(), load));
    ModelBench bench(options, std::move(backend), profile, std::move(model),
                     std::string(DataTypeName(format)), peaks, on_row);
    PS_RETURN_IF_ERROR(bench.Run());
  }
  return Status();
}

}  // namespace polysketch::bench
