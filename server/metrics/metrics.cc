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

using prometheus::Histogram;

// Fine around a quarter of a millisecond, the time of a token of a small model on a good machine;
// up to a stall.
const Histogram::BucketBoundaries kTokenSeconds = {
    0.0001,  0.00015, 0.0002, 0.00025, 0.0003, 0.0004, 0.0005, 0.00065, 0.0008, 0.001,
    0.00125, 0.0015,  0.002,  0.0025,  0.003,  0.004,  0.005,  0.0065,  0.008,  0.01,
    0.0125,  0.015,   0.02,   0.025,   0.03,   0.04,   0.05,   0.075,   0.1,    0.15,
    0.2,     0.3,     0.5,    1,       2.5,    5,      10};
// From a short prompt to hours of scoring.
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

}  // namespace

struct Metrics::Instruments {
  explicit Instruments(prometheus::Registry* r)
      : registry(*r),
        first_token(Seconds("time_to_first_token_seconds",
                            "Time from a request's arrival to its first token.", kRequestSeconds)),
        token_gap(Seconds("inter_token_latency_seconds", "Time between two tokens of a request.",
                          kTokenSeconds)),
        token_mean(Seconds("request_time_per_output_token_seconds",
                           "A request's decode time over its tokens but one.", kTokenSeconds)),
        end_to_end(Seconds("e2e_request_latency_seconds",
                           "Time from a request's arrival to its end.", kRequestSeconds)),
        queue(Seconds("request_queue_time_seconds",
                      "Time that a request waited before its first step.", kRequestSeconds)),
        prefill(Seconds("request_prefill_time_seconds",
                        "Time of a request from its first step to its last prompt token.",
                        kRequestSeconds)),
        decode(Seconds("request_decode_time_seconds",
                       "Time of a request from its last prompt token to its last token.",
                       kRequestSeconds)),
        inference(Seconds("request_inference_time_seconds",
                          "Time of a request from its first step to its end.", kRequestSeconds)),
        step(Seconds("step_duration_seconds", "Time of one step of the model.", kTokenSeconds)),
        step_tokens(Tokens("iteration_tokens", "Tokens of one step, prompt and decoding together.",
                           kStepTokens)),
        step_sequences(Tokens("iteration_sequences", "Requests in one step.", kStepTokens)),
        prompt_tokens(
            Tokens("request_prompt_tokens", "Prompt tokens of a request.", kRequestTokens)),
        generation_tokens(
            Tokens("request_generation_tokens", "Generated tokens of a request.", kRequestTokens)),
        prompt_total(Total("prompt_tokens_total", "Prompt tokens read.")),
        generation_total(Total("generation_tokens_total", "Tokens generated.")),
        drafts(Total("spec_decode_num_drafts_total", "Drafts of speculative decoding.")),
        draft_tokens(Total("spec_decode_num_draft_tokens_total", "Tokens of drafts.")),
        accepted_tokens(
            Total("spec_decode_num_accepted_tokens_total", "Tokens of drafts that held.")),
        parts(CounterFamily("step_part_seconds_total", "Time of steps, by what it went to.")),
        layers(parts.Add({{"part", "layers"}})),
        logits(parts.Add({{"part", "logits"}})),
        sampling(parts.Add({{"part", "sampling"}})),
        storing(parts.Add({{"part", "storing"}})),
        store(prometheus::BuildHistogram()
                  .Name("polysketch_state_store_seconds")
                  .Help("Time of an operation of the state store.")
                  .Register(registry)),
        store_put(store.Add({{"operation", "put"}}, kRequestSeconds)),
        store_get(store.Add({{"operation", "get"}}, kRequestSeconds)),
        store_other(store.Add({{"operation", "other"}}, kRequestSeconds)),
        finished(
            CounterFamily("request_success_total", "Requests that the engine ended, by reason.")),
        rejected(CounterFamily("requests_rejected_total",
                               "Calls that were refused before they reached the engine.")),
        rpcs(CounterFamily("rpcs_total", "Calls ended, by method and status code.")) {
    // Series that exist before the first event let a rate start at zero.
    for (const FinishReason reason :
         {FinishReason::kStop, FinishReason::kLength, FinishReason::kCancelled,
          FinishReason::kDeadline, FinishReason::kStalled, FinishReason::kError,
          FinishReason::kMigrated}) {
      finished.Add({{"finished_reason", std::string(FinishReasonName(reason))}});
    }
    // All of them: whatever clients send, the number of series stays what it is.
    const auto* service =
        v1::CompleteRequest::descriptor()->file()->FindServiceByName("PolySketch");
    for (int method = 0; method < service->method_count(); ++method) {
      for (int code = 0; code <= static_cast<int>(Code::kDataLoss); ++code) {
        const prometheus::Labels labels = RpcLabels(service->method(method)->name(), Code(code));
        rpcs.Add(labels);
        if (code != 0) rejected.Add(labels);
      }
    }
  }

  Histogram& Seconds(const char* name, const char* help,
                     const Histogram::BucketBoundaries& buckets) {
    return prometheus::BuildHistogram()
        .Name(std::string("polysketch_") + name)
        .Help(help)
        .Register(registry)
        .Add({}, buckets);
  }
  Histogram& Tokens(const char* name, const char* help,
                    const Histogram::BucketBoundaries& buckets) {
    return Seconds(name, help, buckets);
  }
  prometheus::Family<prometheus::Counter>& CounterFamily(const char* name, const char* help) {
    return prometheus::BuildCounter()
        .Name(std::string("polysketch_") + name)
        .Help(help)
        .Register(registry);
  }
  prometheus::Counter& Total(const char* name, const char* help) {
    return CounterFamily(name, help).Add({});
  }

  prometheus::Registry& registry;
  Histogram& first_token;
  Histogram& token_gap;
  Histogram& token_mean;
  Histogram& end_to_end;
  Histogram& queue;
  Histogram& prefill;
  Histogram& decode;
  Histogram& inference;
  Histogram& step;
  Histogram& step_tokens;
  Histogram& step_sequences;
  Histogram& prompt_tokens;
  Histogram& generation_tokens;
  prometheus::Counter& prompt_total;
  prometheus::Counter& generation_total;
  prometheus::Counter& drafts;
  prometheus::Counter& draft_tokens;
  prometheus::Counter& accepted_tokens;
  prometheus::Family<prometheus::Counter>& parts;
  prometheus::Counter& layers;
  prometheus::Counter& logits;
  prometheus::Counter& sampling;
  prometheus::Counter& storing;
  prometheus::Family<Histogram>& store;
  Histogram& store_put;
  Histogram& store_get;
  Histogram& store_other;
  prometheus::Family<prometheus::Counter>& finished;
  prometheus::Family<prometheus::Counter>& rejected;
  prometheus::Family<prometheus::Counter>& rpcs;
};

Metrics::Metrics()
    : registry_(std::make_shared<prometheus::Registry>()),
      instruments_(std::make_unique<Instruments>(registry_.get())) {}

Metrics::~Metrics() = default;

void Metrics::SetBuildInfo(const BuildLabels& labels) {
  prometheus::BuildGauge()
      .Name("polysketch_build_info")
      .Help("What is running; always 1.")
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
  instruments_->storing.Increment(Seconds(parts.storing));
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
  if (timings.prefill.count() == 0) return;  // it ended in the queue
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
