// The form of a response of one of OpenAI's endpoints: how what was generated becomes JSON.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "polysketch/v1/polysketch.pb.h"
#include "server/openai/completion_request.h"
#include "server/openai/logprobs.h"

namespace polysketch {

// What has come of one choice. In a stream the form takes what it sends: text and log-probabilities.
struct AnswerChoice {
  std::string text;
  std::optional<Logprobs> logprobs;
  std::string finish_reason;  // "stop", "length", "migrated"; empty: it runs
  std::string matched_stop;
  int32_t last_token = -1;
  int64_t tokens = 0;  // generated
};

struct Answer {
  std::vector<AnswerChoice> choices;  // choice c of prompt p at p * CompletionOptions::choices + c
  std::vector<std::optional<int64_t>> prompt_tokens;  // by prompt; nullopt: not known yet
  v1::Usage usage;
  std::optional<v1::Session> session;
  std::string resume_token;
};

// What each response says of itself.
struct AnswerHeader {
  std::string request_id;
  std::string model;    // the name in the API
  int64_t created = 0;  // seconds since 1970
};

// Used by one call at a time.
class AnswerForm {
 public:
  virtual ~AnswerForm() = default;

  // The body of a whole response.
  virtual std::string Whole(Answer* answer) = 0;
  // The events of a stream, as server-sent events: before the first piece; what choice `index` has;
  // the end.
  virtual std::string Begin() { return ""; }
  virtual std::string Piece(size_t index, Answer* answer) = 0;
  virtual std::string End(const Answer& answer) = 0;
  // The end of a stream that has failed.
  virtual std::string Failure(const Status& status);
};

// "data: JSON", one event.
std::string SseEvent(const nlohmann::ordered_json& json);

// The forms of /v1/completions and of /v1/chat/completions.
std::unique_ptr<AnswerForm> NewCompletionForm(const CompletionOptions& options,
                                              AnswerHeader header);
std::unique_ptr<AnswerForm> NewChatForm(const CompletionOptions& options, AnswerHeader header);

}  // namespace polysketch
