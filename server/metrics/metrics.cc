#include "server/metrics/metrics.h"

#include <google/protobuf/descriptor.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <string>

#include "polysketch/v1/polysketch.pb.h"

namespace polysketch {
namespace {

using prometheus::Counter;
using prometheus::Histogram;

// Seconds, up to a stall. Fine around 0.25 ms, the time of a token of a small model.
const Histogram::BucketBoundaries kTokenSeconds = {
    0.0001,  0.00015, 0.0002, 0.00025, 0.0003, 0.0004, 0.0005, 0.00065, 0.0008, 0.001,
    0.00125, 0.0015,  0.002,  0.0025,  0.003,  0.004,  0.005,  0.0065,  0.008,  0.01,
    0.0125,  0.015,   0.02,   0.025,   0.03,   0.04,   0.05,   0.075,   0.1,    0.15,
    0.2,     0.3,     0.5,    1,       2.5,    5,      10};
// Seconds: from a short prompt to an hour of scoring.
const Histogram::BucketBoundaries kRequestSeconds = {
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075,
    0.1,    0.15,    0.2,    0.3,   0.5,    0.75,  1,    1.5,  2.5,  5,    7.5,
    10,     15,      30,     60,    120,    300,   600,  1800, 3600};
const Histogram::BucketBoundaries kRequestTokens = {
    1,    2,    4,     8,     16,    32,     64,     128,    256,     512,     1024,    2048,
    4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576, 4194304, 16777216};
const Histogram::BucketBoundaries kStepTokens = {1,   2,   4,    8,    16,   32,   64,   128,
                                                 256, 512, 1024, 2048, 4096, 8192, 16384};

double Seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

prometheus::Labels RpcLabels(std::string_view rpc, Code code) {
  return {{"rpc", std::string(rpc)}, {"code", std::string(CodeName(code))}};
}

constexpr char kPartHelp[] =
    "Time of steps by part: layers, logits, sampling, copying (of states that sequences start "
    "from, and of states for the prefix cache). The rest of a step is scheduling.";
constexpr char kStoreHelp[] =
    "Time of an operation of the state store, by operation: put (a write), get (a read), other.";

}  // namespace

struct Metrics::Instruments {
  explicit Instruments(prometheus::Registry* r) : registry(*r) {
    // Series that exist before the first event let a rate start at zero.
    for (const FinishReason reason :
         {FinishReason::kStop, FinishReason::kLength, FinishReason::kCancelled,
          FinishReason::kDeadline, FinishReason::kStalled, FinishReason::kError,
          FinishReason::kMigrated}) {
      finished.Add({{"finished_reason", std::string(FinishReasonName(reason))}});
    }
    // All combinations: the number of series does not depend on what clients send.
    const auto* service =
        v1::CompleteRequest::descriptor()->file()->FindServiceByName("PolySketch");
    for (int method = 0; method < service->method_count(); ++method) {
      for (int code = 0; code <= static_cast<int>(Code::kUnauthenticated); ++code) {
        const prometheus::Labels labels = RpcLabels(service->method(method)->name(), Code(code));
        rpcs.Add(labels);
        if (code != 0) rejected.Add(labels);
      }
    }
  }

  Histogram& NewHistogram(const Histogram::BucketBoundaries& buckets, const std::string& name,
                          const char* help, const prometheus::Labels& labels = {}) {
    return prometheus::BuildHistogram()
        .Name("polysketch_" + name)
        .Help(help)
        .Register(registry)
        .Add(labels, buckets);
  }
  prometheus::Family<Counter>& NewCounters(const std::string& name, const char* help) {
    return prometheus::BuildCounter().Name("polysketch_" + name).Help(help).Register(registry);
  }
  Counter& NewCounter(const std::string& name, const char* help,
                      const prometheus::Labels& labels = {}) {
    return NewCounters(name, help).Add(labels);
  }

  prometheus::Registry& registry;
  Histogram& first_token = NewHistogram(kRequestSeconds, "time_to_first_token_seconds",
                                        "Time from the arrival of a request to its first token.");
  Histogram& token_gap = NewHistogram(kTokenSeconds, "inter_token_latency_seconds",
                                      "Time between two consecutive tokens of a request.");
  Histogram& token_mean =
      NewHistogram(kTokenSeconds, "request_time_per_output_token_seconds",
                   "Decode time of a request divided by its generated tokens less one.");
  Histogram& end_to_end = NewHistogram(kRequestSeconds, "e2e_request_latency_seconds",
                                       "Time from the arrival of a request to its end.");
  Histogram& queue = NewHistogram(kRequestSeconds, "request_queue_time_seconds",
                                  "Time from the arrival of a request to its first step.");
  Histogram& prefill =
      NewHistogram(kRequestSeconds, "request_prefill_time_seconds",
                   "Time from the first step of a request to its last prompt token.");
  Histogram& decode =
      NewHistogram(kRequestSeconds, "request_decode_time_seconds",
                   "Time from the last prompt token of a request to its last token.");
  Histogram& inference = NewHistogram(kRequestSeconds, "request_inference_time_seconds",
                                      "Time from the first step of a request to its last token.");
  Histogram& step = NewHistogram(kTokenSeconds, "step_duration_seconds", "Time of a step.");
  Histogram& step_tokens = NewHistogram(kStepTokens, "iteration_tokens",
                                        "Tokens in a step, prefill and decode together.");
  Histogram& step_sequences =
      NewHistogram(kStepTokens, "iteration_sequences", "Sequences in a step.");
  Histogram& prompt_tokens =
      NewHistogram(kRequestTokens, "request_prompt_tokens",
                   "Prompt tokens of a request, the tokens of its session included.");
  Histogram& generation_tokens = NewHistogram(kRequestTokens, "request_generation_tokens",
                                              "Generated tokens of a request, in all choices.");
  Counter& prompt_total =
      NewCounter("prompt_tokens_total", "Prompt tokens processed, the tokens of scores included.");
  Counter& generation_total = NewCounter("generation_tokens_total", "Generated tokens.");
  Counter& drafts =
      NewCounter("spec_decode_num_drafts_total", "Verified drafts of speculative decoding.");
  Counter& draft_tokens =
      NewCounter("spec_decode_num_draft_tokens_total", "Tokens of verified drafts.");
  Counter& accepted_tokens =
      NewCounter("spec_decode_num_accepted_tokens_total", "Accepted tokens of verified drafts.");
  Counter& layers = NewCounter("step_part_seconds_total", kPartHelp, {{"part", "layers"}});
  Counter& logits = NewCounter("step_part_seconds_total", kPartHelp, {{"part", "logits"}});
  Counter& sampling = NewCounter("step_part_seconds_total", kPartHelp, {{"part", "sampling"}});
  Counter& copying = NewCounter("step_part_seconds_total", kPartHelp, {{"part", "copying"}});
  Histogram& store_put =
      NewHistogram(kRequestSeconds, "state_store_seconds", kStoreHelp, {{"operation", "put"}});
  Histogram& store_get =
      NewHistogram(kRequestSeconds, "state_store_seconds", kStoreHelp, {{"operation", "get"}});
  Histogram& store_other =
      NewHistogram(kRequestSeconds, "state_store_seconds", kStoreHelp, {{"operation", "other"}});
  prometheus::Family<Counter>& finished = NewCounters(
      "request_success_total",
      "Requests that the engine ended, by reason: stop, length, cancelled, deadline, stalled, "
      "error, migrated.");
  prometheus::Family<Counter>& rejected =
      NewCounters("requests_rejected_total",
                  "Calls that ended with an error before they reached the engine, by method and "
                  "status code.");
  prometheus::Family<Counter>& rpcs =
      NewCounters("rpcs_total", "Calls that ended, by method and status code.");
};

Metrics::Metrics()
    : registry_(std::make_shared<prometheus::Registry>()),
      instruments_(std::make_unique<Instruments>(registry_.get())) {}

Metrics::~Metrics() = default;

void Metrics::SetBuildInfo(const BuildLabels& labels) {
  prometheus::BuildGauge()
      .Name("polysketch_build_info")
      .Help("Always 1. Labels: version and commit of the server, model, attention kind, device.")
      .Register(*registry_)
      .Add({{"version", std::string(labels.version)},
            {"commit", std::string(labels.commit)},
            {"model", std::string(labels.model)},
            {"attention", std::string(labels.attention)},
            {"device", std::string(labels.device)}})
      .Set(1);
}

void Metrics::OnAdmitted(std::chrono::nanoseconds queue_time) {
  instruments_->queue.Observe(Seconds(queue_time));
}

void Metrics::OnFirstToken(std::chrono::nanoseconds since_arrival) {
  instruments_->first_token.Observe(Seconds(since_arrival));
  instruments_->generation_total.Increment();
}

void Metrics::OnTokenGap(std::chrono::nanoseconds since_previous_token) {
  instruments_->token_gap.Observe(Seconds(since_previous_token));
  instruments_->generation_total.Increment();
}

void Metrics::OnStep(int sequences, int prefill_tokens, int decode_tokens,
                     std::chrono::nanoseconds duration) {
  instruments_->step.Observe(Seconds(duration));
  instruments_->step_sequences.Observe(sequences);
  instruments_->step_tokens.Observe(prefill_tokens + decode_tokens);
  instruments_->prompt_total.Increment(prefill_tokens);
}

void Metrics::OnStepParts(const StepParts& parts) {
  instruments_->layers.Increment(Seconds(parts.layers));
  instruments_->logits.Increment(Seconds(parts.logits));
  instruments_->sampling.Increment(Seconds(parts.sampling));
  instruments_->copying.Increment(Seconds(parts.copying));
}

void Metrics::OnStore(StoreOperation operation, std::chrono::nanoseconds duration) {
  Histogram& histogram = operation == StoreOperation::kPut   ? instruments_->store_put
                         : operation == StoreOperation::kGet ? instruments_->store_get
                                                             : instruments_->store_other;
  histogram.Observe(Seconds(duration));
}

void Metrics::OnDraft(int64_t proposed, int64_t accepted) {
  instruments_->drafts.Increment();
  instruments_->draft_tokens.Increment(static_cast<double>(proposed));
  instruments_->accepted_tokens.Increment(static_cast<double>(accepted));
}

void Metrics::OnFinished(const FinishEvent& finish) {
  instruments_->finished.Add({{"finished_reason", std::string(FinishReasonName(finish.reason))}})
      .Increment();
  const Timings& timings = finish.timings;
  instruments_->end_to_end.Observe(Seconds(timings.total));
  if (timings.prefill.count() == 0) return;  // the request ended in the queue
  instruments_->prefill.Observe(Seconds(timings.prefill));
  instruments_->decode.Observe(Seconds(timings.decode));
  instruments_->inference.Observe(Seconds(timings.prefill + timings.decode));
  instruments_->prompt_tokens.Observe(static_cast<double>(finish.usage.prompt_tokens));
  instruments_->generation_tokens.Observe(static_cast<double>(finish.usage.completion_tokens));
  if (finish.usage.completion_tokens > 1) {
    instruments_->token_mean.Observe(Seconds(timings.decode) /
                                     static_cast<double>(finish.usage.completion_tokens - 1));
  }
}

void Metrics::OnRpc(std::string_view rpc, Code code, bool rejected) {
  const prometheus::Labels labels = RpcLabels(rpc, code);
  instruments_->rpcs.Add(labels).Increment();
  if (rejected) instruments_->rejected.Add(labels).Increment();
}

}  // namespace polysketch
