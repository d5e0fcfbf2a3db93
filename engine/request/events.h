// The events that the engine reports for a request: plain data.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "engine/request/chunk_times.h"

namespace polysketch {

struct Snapshot;  // engine/snapshot/snapshot.h

// kMigrated: ended between two tokens; FinishEvent::snapshot continues the completion.
enum class FinishReason { kStop, kLength, kCancelled, kDeadline, kStalled, kError, kMigrated };
// "stop", "length", ...
inline std::string_view FinishReasonName(FinishReason reason) {
  constexpr std::string_view kNames[] = {"stop",    "length", "cancelled", "deadline",
                                         "stalled", "error",  "migrated"};
  return kNames[static_cast<size_t>(reason)];
}

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

// One generated (or echoed) token. `text` holds the bytes that became certain with this token:
// whole UTF-8 characters only, and no part of a stop string that may still match. Text that is held
// back follows with later tokens or with FinishEvent.
struct TokenEvent {
  int32_t token = 0;
  std::string text;
  bool echoed = false;
  int choice = 0;
  std::optional<float> logprob;   // unset for the first prompt token
  int32_t rank = 0;               // of an echoed token with one: tokens that are at least as likely
  std::vector<TokenLogprob> top;  // most likely first
};

// Prompt tokens processed so far; sent about once a second during long prompts and scores.
struct ProgressEvent {
  int64_t processed = 0;
  int64_t total = 0;  // 0: unknown (a score whose input still arrives)
};

// Log-probabilities of consecutive tokens of a score: element i belongs to token first + i of the
// sequence, given all tokens before it. The first token of a sequence has none.
struct ScoreEvent {
  int64_t first = 0;
  std::vector<float> logprobs;
  std::vector<bool> greedy = {};     // whether greedy sampling takes the token; one for each
  std::vector<int32_t> tokens = {};  // the ids; one for each
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

// Why the prefix cache provided no token of a prompt.
enum class CacheMiss {
  kNone,      // it provided some, or the request started from a snapshot
  kDisabled,  // there is no cache, or the request did not read it or needs every row
  kTooShort,  // the prompt is shorter than the entries
  kNoPrefix,  // no entry begins the prompt
};

struct Timings {
  std::chrono::nanoseconds queue{0};
  std::chrono::nanoseconds prefill{0};
  std::chrono::nanoseconds decode{0};
  std::chrono::nanoseconds first_token{0};  // from arrival; 0 without a token
  std::chrono::nanoseconds total{0};
};

// One of several choices (n > 1 or best_of > 1) has ended.
struct ChoiceEvent {
  int choice = 0;
  FinishReason reason = FinishReason::kStop;
  std::string text;  // the text that was held back until the end
  std::string matched_stop;
  std::optional<int32_t> stop_token = {};  // as in FinishEvent
  uint64_t seed = 0;  // a request with n = 1 and this seed generates the same tokens
  int64_t completion_tokens = 0;
  double logprob_sum = 0;  // with log-probabilities or best_of > n
};

// The far mass (docs/glossary.md) in a layer, as means over the queries of a range of positions.
struct FarMass {
  int layer = 0;
  int64_t first = 0;  // position at which the range begins
  int64_t queries = 0;
  std::vector<double> shares;  // by head of queries
};

// Always the last event, exactly once. A request with several choices reports the reason and seed
// of the first choice and the tokens of all.
struct FinishEvent {
  FinishReason reason = FinishReason::kStop;
  Status status;             // not OK with kError, kDeadline, kStalled, kCancelled
  std::string text;          // the text that was held back until the end
  std::string matched_stop;  // the stop string that ended the completion; empty: another reason
  // The token that ended the completion, unless it is EOS itself; unset: another reason.
  std::optional<int32_t> stop_token = {};
  uint64_t seed = 0;
  Usage usage;
  CacheMiss cache_miss = CacheMiss::kNone;
  Timings timings;
  std::vector<ChunkTime> chunks = {};  // of the prompt, with RequestInfo::record_chunks
  // A score: the sum in float64 over all tokens. A completion: the sum over its output, with
  // log-probabilities or best_of > n.
  double logprob_sum = 0;
  std::vector<FarMass> far_mass = {};  // with ScoreRequest::far_mass, by layer, then by range
  // The sequence at its end: with kMigrated, and with GenerateRequest::keep after kStop or kLength.
  std::shared_ptr<const Snapshot> snapshot;
};

using Event = std::variant<TokenEvent, ProgressEvent, ScoreEvent, ChoiceEvent, FinishEvent>;

}  // namespace polysketch
