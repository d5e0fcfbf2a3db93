// The form of a response of one of OpenAI's endpoints: how what was generated becomes JSON.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer/tokenizer.h"
#include "polysketch/v1/polysketch.pb.h"
#include "server/openai/completion_request.h"
#include "server/openai/control_filter.h"
#include "server/openai/logprobs.h"

namespace polysketch {

// The prompt, as an echo returns it before the text of each choice.
struct EchoedPrompt {
  std::string text;
  LogprobColumns logprobs;
  // With CompletionOptions::prompt_logprobs: the elements of the array.
  std::string prompt_logprobs;
};

// Tells which tokens of an output are reasoning.
class ReasoningCounter {
 public:
  ReasoningCounter(const ReasoningReader& reader, const IncrementalDecoder& decoder)
      : reader_(reader), decoder_(decoder) {}
  // Whether the next token belongs to the reasoning or to one of its marks.
  bool IsReasoning(int32_t token) {
    const bool before = reader_.reasons();
    reader_.Take(decoder_.Append(token));
    return before || reader_.reasons();
  }

 private:
  ReasoningReader reader_;
  IncrementalDecoder decoder_;
};

// What has come of one choice. The form takes what it sends: echo, text and log-probabilities.
struct AnswerChoice {
  const EchoedPrompt* echo = nullptr;  // that is due; shared by the choices of a prompt
  std::string reasoning;               // comes before the text
  std::string prefix;                  // comes before it too: the client's, which is not parsed
  std::string text;
  std::optional<Logprobs> logprobs;
  std::string finish_reason;  // "stop", "length", "migrated"; empty: it runs
  std::string matched_stop;
  std::optional<int32_t> stop_token;  // of v1::Finish
  int32_t last_token = -1;
  int64_t tokens = 0;                     // generated
  std::vector<int32_t> token_ids;         // with CompletionOptions::token_ids
  std::optional<ReasoningReader> reader;  // that divides reasoning and text; nullopt: all is text
  std::optional<ReasoningCounter> counter;
  std::optional<ControlFilter> filter;  // with CompletionOptions::marks
  int64_t reasoning_tokens = 0;         // up to the one that ends the reasoning
};

struct Answer {
  std::vector<EchoedPrompt> echoes;   // by prompt
  std::vector<AnswerChoice> choices;  // choice c of prompt p at p * choices_of_prompt() + c
  std::vector<std::vector<int32_t>> prompt_ids;  // by prompt, with CompletionOptions::token_ids
  std::vector<std::optional<int64_t>> prompt_tokens;  // by prompt; nullopt: not known yet
  v1::Usage usage;
  std::optional<v1::Session> session;
  std::vector<std::string> resume_tokens;  // by prompt; empty: it was not migrated

  // That of the request, or, resumed, of the request that was migrated.
  size_t choices_of_prompt() const {
    return choices.size() / std::max<size_t>(prompt_tokens.size(), 1);
  }
  bool migrated() const {
    return std::ranges::any_of(resume_tokens, [](const auto& token) { return !token.empty(); });
  }
  // Of the tokens of all choices; nullopt if reasoning is not told from the answer.
  std::optional<int64_t> ReasoningTokens() const;
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

  // Memory of what the form keeps of a stream, and of the events that repeat it at the end.
  virtual int64_t KeptBytes() const { return 0; }
  // The body of a whole response.
  virtual std::string Whole(Answer* answer) = 0;
  // The events of a stream, as server-sent events: before the first piece; what choice `index` has;
  // the end.
  virtual std::string Begin(const Answer& answer);
  virtual std::string Piece(size_t index, Answer* answer) = 0;
  virtual std::string End(const Answer& answer) = 0;
  // What a stream that has been silent sends: it means nothing.
  virtual std::string Silence() const;
  // The end of a stream that has failed.
  virtual std::string Failure(const Status& status);
};

// "data: JSON", one event.
std::string SseEvent(const std::string& json);
// The same with "event: TYPE" before it.
std::string SseEvent(std::string_view type, const std::string& json);

// The forms of /v1/completions and of /v1/chat/completions.
std::unique_ptr<AnswerForm> NewCompletionForm(const CompletionOptions& options,
                                              AnswerHeader header);
std::unique_ptr<AnswerForm> NewChatForm(const CompletionOptions& options, AnswerHeader header);

}  // namespace polysketch
