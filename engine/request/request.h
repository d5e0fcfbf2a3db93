// What the server hands to the engine and what comes back: plain data, no gRPC.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"

namespace polysketch {

struct Snapshot;  // engine/snapshot/snapshot.h

using Clock = std::chrono::steady_clock;
using RequestId = uint64_t;

// Fields as in vLLM's SamplingParams; ValidateSampling (engine/sampler/sampling_params.h) says
// which values are legal.
struct SamplingParams {
  float temperature = 1.0f;  // 0 is greedy
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  // over prompt and output
  float frequency_penalty = 0.0f;   // over output
  float presence_penalty = 0.0f;    // over output
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::optional<uint64_t> seed;  // unset: the engine draws one and reports it in Finish

  bool operator==(const SamplingParams&) const = default;
};

struct GenerateParams {
  SamplingParams sampling;
  // Unset: until a stop condition or the server's limit. 0: prefill only (with echo and logprobs:
  // scoring of the prompt).
  std::optional<int32_t> max_tokens;
  std::vector<std::string> stop;  // matched on text; needs a tokenizer
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_in_output = false;
  // Unset: no log-probabilities. n: the chosen token's and the n most likely.
  std::optional<int32_t> logprobs;
  bool echo = false;  // prompt tokens first, with log-probabilities when asked for
  // Choices that go out, and that are made: the n of the highest cumulative log-probability.
  int32_t n = 1;
  int32_t best_of = 1;  // >= n
  // Most tokens that speculative decoding drafts for a step; unset: the engine's default, 0: none.
  std::optional<int32_t> draft_tokens;

  bool operator==(const GenerateParams&) const = default;
};

// kMigrated: stopped between two tokens, to go on elsewhere from FinishEvent::snapshot.
enum class FinishReason { kStop, kLength, kCancelled, kDeadline, kStalled, kError, kMigrated };
// "stop", "length", ...
std::string_view FinishReasonName(FinishReason reason);

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

// One generated (or echoed) token. Text is the bytes that became certain with it: complete UTF-8
// characters only, and never part of a stop string that may still match; the rest follows with
// later tokens or with Finish.
struct TokenEvent {
  int32_t token = 0;
  std::string text;
  bool echoed = false;
  int choice = 0;
  std::optional<float> logprob;   // none for the first prompt token
  std::vector<TokenLogprob> top;  // most likely first
};

// Prompt tokens processed so far; sent about once a second during long prompts and scores.
struct ProgressEvent {
  int64_t processed = 0;
  int64_t total = 0;  // 0: not known yet (a score whose input is still arriving)
};

// Log-probabilities of consecutive tokens of a score: element i belongs to token first + i, given
// all before it. The first token of an input has none, so first starts at 1.
struct ScoreEvent {
  int64_t first = 0;
  std::vector<float> logprobs;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

// Why no token of a prompt was taken from a stored state.
enum class CacheMiss {
  kNone,      // some were, or the request had a start of its own
  kDisabled,  // there is no cache, or the request did not want it, or wanted every row
  kTooShort,  // shorter than what is stored
  kNoPrefix,  // nothing stored begins it
};

struct Timings {
  std::chrono::nanoseconds queue{0};
  std::chrono::nanoseconds prefill{0};
  std::chrono::nanoseconds decode{0};
  std::chrono::nanoseconds first_token{0};  // from arrival; 0 when there was none
  std::chrono::nanoseconds total{0};
};

// One of several choices (n > 1 or best_of > 1) has ended.
struct ChoiceEvent {
  int choice = 0;
  FinishReason reason = FinishReason::kStop;
  std::string text;  // what was held back and is certain now
  std::string matched_stop;
  uint64_t seed = 0;  // alone, with this seed, it gives the same tokens
  int64_t completion_tokens = 0;
  double logprob_sum = 0;  // with log-probabilities or best_of > n
};

// Always the last event, exactly once. Of several choices: the reason and seed of the first, tokens
// of all.
struct FinishEvent {
  FinishReason reason = FinishReason::kStop;
  Status status;             // not OK with kError, kDeadline, kStalled, kCancelled
  std::string text;          // what was held back and is certain now
  std::string matched_stop;  // the stop string that ended it, if one did
  uint64_t seed = 0;
  Usage usage;
  CacheMiss cache_miss = CacheMiss::kNone;
  Timings timings;
  // Sum in float64 over all scored tokens; of completions over the output, if it was asked for.
  double logprob_sum = 0;
  // The sequence as it ended: with kMigrated, and with GenerateRequest::keep after kStop or
  // kLength.
  std::shared_ptr<const Snapshot> snapshot;
};

using Event = std::variant<TokenEvent, ProgressEvent, ScoreEvent, ChoiceEvent, FinishEvent>;

// The bounded buffer between the engine thread (producer) and one writer (consumer). A full buffer
// parks the sequence: it costs nothing until the reader catches up or the stall deadline ends it.
// Push never refuses: the events of the step that fills the buffer may pass the capacity, and the
// FinishEvent always fits.
class EventStream {
 public:
  // Parks its sequence at `capacity` events (at least one). A test may bring its own clock.
  explicit EventStream(size_t capacity, std::function<Clock::time_point()> now = Clock::now)
      : capacity_(capacity > 0 ? capacity : 1), now_(std::move(now)) {}

  // Consumer. Pops the next event; false when there is none now.
  bool TryPop(Event* event);
  // Consumer. Called from the engine thread, without locks held, whenever an event arrives in an
  // empty buffer. Set before Submit.
  void SetOnReady(std::function<void()> on_ready);

  // Producer.
  void Push(Event event);
  bool Full() const;
  // Producer: called from the consumer's thread when a full buffer has room again. Set by the
  // engine.
  void SetOnDrained(std::function<void()> on_drained);
  // When the buffer last became full (for the stall deadline); unset while it is not.
  std::optional<Clock::time_point> full_since() const;

 private:
  const size_t capacity_;
  const std::function<Clock::time_point()> now_;
  mutable std::mutex mutex_;
  std::function<void()> on_ready_;  // written under mutex_ before the first Push, then only called
  std::function<void()> on_drained_;             // the same
  std::deque<Event> events_;                     // guarded by mutex_
  std::optional<Clock::time_point> full_since_;  // guarded by mutex_
};

// The tokens of a score on their way in: bounded, so that a text of any length needs constant
// memory.
class TokenFeed {
 public:
  // Full at `capacity` tokens (at least two: a score looks one token ahead).
  explicit TokenFeed(size_t capacity) : capacity_(capacity > 2 ? capacity : 2) {}

  // Server side. Appends; may pass the capacity by one call's worth. Returns false when the feed is
  // now full: wait for on_room before the next Push.
  bool Push(std::vector<int32_t> tokens);
  // No more tokens follow.
  void Close();
  // Called from the engine thread, without locks held, when a full feed has room again.
  // Set before Submit.
  void SetOnRoom(std::function<void()> on_room);

  // Engine side. Moves up to `most` tokens to the end of `out`; returns how many.
  size_t Pull(size_t most, std::vector<int32_t>* out);
  size_t available() const;
  // Closed and everything pulled.
  bool Exhausted() const;
  bool closed() const;
  // Called from the server's thread when tokens arrive or the feed closes. Set by the engine.
  void SetOnData(std::function<void()> on_data);

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::function<void()> on_room_;  // written under mutex_ before Submit, then only called
  std::function<void()> on_data_;  // written once, under mutex_, by Submit; then only called
  std::deque<int32_t> tokens_;     // guarded by mutex_
  bool closed_ = false;            // guarded by mutex_
  bool full_ = false;              // guarded by mutex_
};

struct RequestInfo {
  std::string id;           // x-request-id, or made by the server; in logs
  std::string traceparent;  // passed through to logs
  std::string tenant;       // x-tenant-id; empty: the one tenant of a server without a gateway
  Clock::time_point arrival = Clock::now();
  Clock::time_point deadline = Clock::time_point::max();
  int priority = 0;  // the higher, the sooner
};

// How a completion uses the states of prompts that were read before.
struct CacheParams {
  bool read = true;
  bool write = true;
  std::vector<int64_t> points = {};  // tokens behind which a state is stored too, rising, above 0
};

struct GenerateRequest {
  RequestInfo info;
  std::vector<int32_t> prompt;  // token ids, BOS included; may be empty behind a `start`
  GenerateParams params;
  // What the prompt follows; null: the empty sequence. One with a Generation is resumed: prompt and
  // params are not used then.
  std::shared_ptr<const Snapshot> start = nullptr;
  bool keep = false;  // the finish holds a snapshot of the whole sequence
  CacheParams cache = {};
};

struct ScoreRequest {
  RequestInfo info;
  std::shared_ptr<TokenFeed> feed;
};

}  // namespace polysketch
