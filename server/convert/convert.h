// Messages of polysketch.v1 <-> plain data of the engine. Errors name the field of the message.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/grammar/grammar.h"
#include "engine/request/request.h"
#include "engine/session/session_table.h"
#include "engine/tokenizer/tokenizer.h"
#include "polysketch/v1/polysketch.pb.h"

namespace polysketch {

// The limits of the server and the properties of its model that requests are checked against.
struct RequestRules {
  const Tokenizer* tokenizer = nullptr;  // null: token ids only
  GrammarCompiler* grammars = nullptr;   // null without a tokenizer
  bool add_bos = false;                  // before a text that continues nothing
  int bos_id = -1;
  int vocab_size = 0;
  int64_t max_prompt_tokens = 0;
  int32_t max_new_tokens = 0;
  int32_t default_max_tokens = 4096;  // of a completion without max_tokens, at most
  SamplingParams sampling = {};       // of requests that set none
  int32_t max_priority = 0;           // of callers whose API key has none
  int32_t draft_tokens = 0;           // of requests that set none
};

// FAILED_PRECONDITION without a tokenizer; the message begins with `field`.
Status RequireTokenizer(const RequestRules& rules, std::string_view field);
// INVALID_ARGUMENT: "field[5]: expected an id in [0, 4096), found -1".
Status CheckTokenIds(std::string_view field, std::span<const int32_t> ids, int vocab_size);

// Returns CompleteRequest.priority. INVALID_ARGUMENT for a priority outside
// [-max_priority, max_priority].
Result<int> ToPriority(const v1::CompleteRequest& request, int max_priority);
// INVALID_ARGUMENT for points that do not increase, or more than 64, and for a salt that is too
// long.
Result<CacheParams> ToCacheParams(const v1::CacheOptions& options);
// INVALID_ARGUMENT unless exactly one field is set, to a value that it may have. The source may
// still be no grammar.
Result<GrammarSource> ToGrammarSource(const v1::StructuredOutput& output);
// Returns validated parameters. INVALID_ARGUMENT names the field of the message.
Result<GenerateParams> ToGenerateParams(const v1::CompleteRequest& request,
                                        const RequestRules& rules);

// Converts the field ttl_seconds of the RPCs of sessions. Saturates: the session table refuses a
// value out of range.
std::chrono::milliseconds ToTtl(int64_t seconds);
// The number of forks; INVALID_ARGUMENT unless it is 1 to 64, or 0, which means 1.
Result<int> ToForkCount(const v1::ForkSessionRequest& request);

// The field expected_position, if it is set.
template <typename Message>
std::optional<int64_t> ExpectedPosition(const Message& message) {
  if (!message.has_expected_position()) return std::nullopt;
  return message.expected_position();
}

void ToProto(const SamplingParams& params, v1::Sampling* sampling);  // without bias and seed
// Appends one token. `tokenizer` provides the pieces of alternatives; null: the pieces stay empty.
void AppendToken(const TokenEvent& event, bool with_logprobs, const Tokenizer* tokenizer,
                 v1::Delta* delta);
void ToProto(const ProgressEvent& event, v1::Progress* progress);
void ToProto(const ScoreEvent& event, v1::ScoreLogprobs* logprobs);
void ToProto(const ChoiceEvent& event, v1::ChoiceFinish* finish);
// `event`: a FinishEvent whose FinishStatus is OK.
void ToProto(const FinishEvent& event, v1::Finish* finish);
// `before`: tokens of the session, which precede the input.
void ToProto(const FinishEvent& event, int64_t before, v1::ScoreFinish* finish);
void ToProto(const FinishEvent& event, v1::AppendResponse* response);  // leaves the session unset
void ToProto(const SessionInfo& info, v1::Session* session);
void ToProto(const SnapshotInfo& info, v1::Snapshot* snapshot);

}  // namespace polysketch
