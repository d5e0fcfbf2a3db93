#include "server/openai/answer_form.h"

#include <memory>
#include <utility>

#include "server/http/http_errors.h"
#include "server/http/json_text.h"
#include "server/openai/growing_json.h"
#include "server/openai/tools.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kDone[] = "data: [DONE]\n\n";
constexpr char kPromptLogprobs[] = "prompt_logprobs";

Json Head(std::string_view prefix, std::string_view object, const AnswerHeader& header) {
  Json json;
  json["id"] = StrCat(prefix, header.request_id);
  json["object"] = object;
  json["created"] = header.created;
  json["model"] = header.model;
  json["choices"] = Json::array();
  return json;
}

// As vLLM: the stop string or stop token that ended the choice, none for EOS.
void AddStopReason(const AnswerChoice& choice, Json* json) {
  if (!choice.matched_stop.empty()) {
    (*json)["stop_reason"] = choice.matched_stop;
  } else if (choice.stop_token) {
    (*json)["stop_reason"] = *choice.stop_token;
  }
}

// {"prompt_tokens", "completion_tokens", ...}.
Json UsageJson(const Answer& answer) {
  const v1::Usage& usage = answer.usage;
  Json json;
  json["prompt_tokens"] = usage.prompt_tokens();
  json["completion_tokens"] = usage.completion_tokens();
  json["total_tokens"] = usage.prompt_tokens() + usage.completion_tokens();
  json["prompt_tokens_details"] = {{"cached_tokens", usage.cached_tokens()}};
  if (const auto reasoning = answer.ReasoningTokens())
    json["completion_tokens_details"] = {{"reasoning_tokens", *reasoning}};
  return json;
}

// Adds the fields of this server: the session after the completion, and how to continue that of a
// prompt which was migrated.
void AddSession(const Answer& answer, Json* json) {
  if (answer.session.has_value())
    (*json)["session"] = {{"id", answer.session->session()}, {"tokens", answer.session->tokens()}};
}
void AddResumeToken(const Answer& answer, size_t prompt, Json* json) {
  if (prompt < answer.resume_tokens.size() && !answer.resume_tokens[prompt].empty())
    (*json)["resume_token"] = answer.resume_tokens[prompt];
}

// Completions and chat completions: choices in an envelope, usage as the last event.
class ChoicesForm : public AnswerForm {
 public:
  ChoicesForm(const CompletionOptions& options, AnswerHeader header)
      : options_(options), header_(std::move(header)) {}

  std::string Whole(Answer* answer) final {
    std::string choices = "[";
    for (size_t i = 0; i < answer->choices.size(); ++i) {
      if (i > 0) choices += ',';
      choices += WholeChoice(i, answer);
    }
    choices += ']';
    Json body = Envelope(header_, /*stream=*/false);
    AddPromptIds(answer, &body);
    body["usage"] = UsageJson(*answer);
    AddSession(*answer, &body);
    if (answer->resume_tokens.size() == 1) AddResumeToken(*answer, 0, &body);
    if (options_.prompt_logprobs && prompt_of_response()) body[kPromptLogprobs] = Json::array();
    std::string text = WithMember(body, "choices", choices);
    if (prompt_of_response()) text = WithPromptLogprobs(std::move(text), 0, *answer);
    answer->echoes.clear();
    return text;
  }

  std::string Piece(size_t index, Answer* answer) final {
    const AnswerChoice* const choice = &answer->choices[index];
    const std::string piece = PieceChoice(index, answer);
    if (piece.empty()) return "";
    if (head_.empty()) {
      head_ = JsonText(Envelope(header_, /*stream=*/true));
      head_.resize(head_.size() - std::string_view("[]}").size());
    }
    Json more = Json::object();
    AddPromptIds(answer, &more);
    if (options_.include_usage) more["usage"] = UsageSoFar(index, *answer);
    if (!choice->finish_reason.empty()) {
      AddSession(*answer, &more);
      AddResumeToken(*answer, PromptOf(index, *answer), &more);
    }
    std::string event = head_;
    ((event += '[') += piece) += ']';
    more.empty() ? event += '}' : (event += ',').append(JsonText(more), 1);
    return SseEvent(event);
  }

  std::string End(const Answer& answer) final {
    if (!options_.include_usage) return kDone;
    Json event = Envelope(header_, /*stream=*/true);
    event["usage"] = UsageJson(answer);
    return SseEvent(JsonText(event)) + kDone;
  }

 protected:
  virtual Json Envelope(const AnswerHeader& header, bool stream) const = 0;
  // Each takes what the choice has. A piece without anything to say is empty.
  virtual std::string WholeChoice(size_t index, Answer* answer) = 0;
  virtual std::string PieceChoice(size_t index, Answer* answer) = 0;
  // Whether what is said of the prompt is a member of the response, not of its choices.
  virtual bool prompt_of_response() const = 0;

  // What precedes the text that was generated.
  static std::string TakePrefix(AnswerChoice* choice) {
    std::string prefix = choice->echo != nullptr ? choice->echo->text : "";
    return prefix += std::exchange(choice->prefix, {});
  }
  // The prompt of choice `index`.
  static size_t PromptOf(size_t index, const Answer& answer) {
    return index / answer.choices_of_prompt();
  }
  // The JSON of choice `index`: `field` with `value`, and with all else that it has, which is
  // taken.
  std::string ChoiceJson(size_t index, const char* field, Json value, Answer* answer) {
    AnswerChoice* const choice = &answer->choices[index];
    Json json = {{"index", index}};
    json[field] = std::move(value);
    json["logprobs"] = choice->logprobs ? Json::array() : Json();
    json["finish_reason"] = choice->finish_reason.empty() ? Json() : Json(choice->finish_reason);
    AddStopReason(*choice, &json);
    // The response has that of its only prompt, and an event of a stream that of its choice.
    if (!options_.stream && answer->resume_tokens.size() > 1)
      AddResumeToken(*answer, PromptOf(index, *answer), &json);
    AddChoiceIds(index, answer, &json);
    const bool with_prompt = options_.prompt_logprobs && !prompt_of_response();
    if (with_prompt) json[kPromptLogprobs] = Json::array();
    const EchoedPrompt* const echo = std::exchange(choice->echo, nullptr);
    static const LogprobColumns kNone;
    std::string text = JsonText(json);
    if (choice->logprobs) {
      text = WithMember(std::move(text), "logprobs",
                        choice->logprobs->Take(echo == nullptr ? kNone : echo->logprobs));
    }
    return with_prompt ? WithPromptLogprobs(std::move(text), index, *answer) : text;
  }

  const CompletionOptions& options() const { return options_; }

  // The text of an object that has an empty array in the place of the log-probabilities of the
  // prompt of choice `index`, if there are any.
  std::string WithPromptLogprobs(std::string object, size_t index, const Answer& answer) const {
    if (!options_.prompt_logprobs) return object;
    const EchoedPrompt& echo = answer.echoes[PromptOf(index, answer)];
    return WithMember(std::move(object), kPromptLogprobs, StrCat("[", echo.prompt_logprobs, "]"));
  }

  // The token ids of a choice, and once those of its prompt.
  void AddChoiceIds(size_t index, Answer* answer, Json* json) {
    if (!options_.token_ids) return;
    if (!prompt_of_response()) {
      if (with_ids_.size() <= index) with_ids_.resize(index + 1);
      if (!with_ids_[index])
        (*json)["prompt_token_ids"] = answer->prompt_ids[PromptOf(index, *answer)];
      with_ids_[index] = true;
    }
    (*json)["token_ids"] = std::exchange(answer->choices[index].token_ids, {});
  }

 private:
  // Once.
  void AddPromptIds(Answer* answer, Json* json) const {
    if (!options_.token_ids || !prompt_of_response() || answer->prompt_ids.empty()) return;
    (*json)["prompt_token_ids"] = answer->prompt_ids[0];
    answer->prompt_ids.clear();
  }

  // Of a choice and its prompt; null unless the client asks for it.
  Json UsageSoFar(size_t index, const Answer& answer) const {
    if (!options_.continuous_usage) return {};
    const size_t prompt = PromptOf(index, answer);
    const int64_t before =
        prompt < answer.prompt_tokens.size() ? answer.prompt_tokens[prompt].value_or(0) : 0;
    const int64_t tokens = answer.choices[index].tokens;
    return {{"prompt_tokens", before},
            {"completion_tokens", tokens},
            {"total_tokens", before + tokens}};
  }

  const CompletionOptions options_;
  const AnswerHeader header_;
  std::string head_;            // of an event: its JSON up to the choices
  std::vector<bool> with_ids_;  // by choice: the ids of its prompt were written
};

class TextCompletionForm final : public ChoicesForm {
 public:
  using ChoicesForm::ChoicesForm;

 private:
  Json Envelope(const AnswerHeader& header, bool) const override {
    return Head("cmpl-", "text_completion", header);
  }
  bool prompt_of_response() const override { return false; }
  std::string WholeChoice(size_t index, Answer* answer) override {
    AnswerChoice* const choice = &answer->choices[index];
    return ChoiceJson(index, "text", TakePrefix(choice) + std::exchange(choice->text, {}), answer);
  }
  std::string PieceChoice(size_t index, Answer* answer) override {
    return WholeChoice(index, answer);
  }
};

class ChatForm final : public ChoicesForm {
 public:
  using ChoicesForm::ChoicesForm;

 private:
  Json Envelope(const AnswerHeader& header, bool stream) const override {
    return Head("chatcmpl-", stream ? "chat.completion.chunk" : "chat.completion", header);
  }
  bool prompt_of_response() const override { return true; }
  int64_t KeptBytes() const override {
    size_t bytes = 0;
    for (const Stream& stream : streams_)
      bytes += stream.parser == nullptr ? 0 : stream.parser->held_bytes();
    return static_cast<int64_t>(bytes);
  }

  std::string WholeChoice(size_t index, Answer* answer) override {
    AnswerChoice* const choice = &answer->choices[index];
    Json message, calls = Json::array();
    Stream whole;
    std::string content = TakePrefix(choice) + TakeText(/*streams=*/false, choice, &whole, &calls);
    message["role"] = "assistant";
    message["content"] = calls.empty() || !content.empty() ? Json(std::move(content)) : Json();
    message["refusal"] = nullptr;
    if (!choice->reasoning.empty())
      message["reasoning_content"] = std::exchange(choice->reasoning, {});
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    return ChoiceJson(index, "message", std::move(message), answer);
  }

  // The first piece of a choice names the role.
  std::string PieceChoice(size_t index, Answer* answer) override {
    AnswerChoice* const choice = &answer->choices[index];
    if (index >= streams_.size()) streams_.resize(index + 1);
    Stream& stream = streams_[index];
    Json calls = Json::array();
    std::string text = TakePrefix(choice) + TakeText(/*streams=*/true, choice, &stream, &calls);
    Json delta = Json::object();
    if (!stream.began) delta["role"] = "assistant";
    if (!choice->reasoning.empty())
      delta["reasoning_content"] = std::exchange(choice->reasoning, {});
    if (!stream.began || !text.empty()) delta["content"] = std::move(text);
    if (!calls.empty()) delta["tool_calls"] = std::move(calls);
    stream.began = true;
    if (delta.empty() && choice->finish_reason.empty() && !choice->logprobs.has_value() &&
        (options().tools || options().reasoning))
      return "";
    return ChoiceJson(index, "delta", std::move(delta), answer);
  }

  struct Stream {
    bool began = false;
    std::unique_ptr<ToolParser> parser;
    int calls = 0;     // that were announced
    int complete = 0;  // of them
  };

  // Returns the text of a choice that is no part of a call, and adds the parts of calls to `calls`.
  std::string TakeText(bool streams, AnswerChoice* choice, Stream* stream, Json* calls) {
    const std::string piece = std::exchange(choice->text, {});
    if (!options().tools) return piece;
    const ToolParsing& tools = *options().tools;
    if (stream->parser == nullptr) stream->parser = NewToolParser(tools);
    ToolEvents events = stream->parser->Read(piece, !choice->finish_reason.empty());
    // A call that the end of the output cut is with the client of a stream, as far as it came.
    const bool cut = streams && !choice->finish_reason.empty() && choice->finish_reason != "stop";
    if (cut && !events.empty() && events.back().kind == ToolEvent::Kind::kBroken) events.pop_back();
    std::string text;
    for (const ToolEvent& event : events) {
      switch (event.kind) {
        case ToolEvent::Kind::kCall: {
          Json call;
          if (streams) call["index"] = stream->calls++;
          call["id"] = NewCallId(tools.form);
          call["type"] = "function";
          call["function"] = {{"name", event.text}, {"arguments", ""}};
          calls->push_back(std::move(call));
          break;
        }
        case ToolEvent::Kind::kArguments: {
          const int index = stream->calls - 1;
          if (streams && (calls->empty() || calls->back()["index"] != index))
            calls->push_back({{"index", index}, {"function", {{"arguments", ""}}}});
          calls->back()["function"]["arguments"].get_ref<std::string&>() += event.text;
          break;
        }
        case ToolEvent::Kind::kEnd:
          ++stream->complete;
          break;
        case ToolEvent::Kind::kBroken:  // its arguments are with the client of a stream already
          if (!streams) calls->erase(calls->size() - 1);
          [[fallthrough]];
        case ToolEvent::Kind::kText:
          text += event.text;
          break;
      }
    }
    if (stream->complete > 0 && choice->finish_reason == "stop")
      choice->finish_reason = "tool_calls";
    return text;
  }

  std::vector<Stream> streams_;  // by choice
};

}  // namespace

std::string AnswerForm::Begin(const Answer& /*answer*/) { return ""; }

std::string AnswerForm::Silence() const {
  return ": the request waits or its prompt is processed\n\n";
}

std::optional<int64_t> Answer::ReasoningTokens() const {
  std::optional<int64_t> tokens;
  for (const AnswerChoice& choice : choices) {
    if (choice.reader.has_value()) tokens = tokens.value_or(0) + choice.reasoning_tokens;
  }
  return tokens;
}

std::string AnswerForm::Failure(const Status& status) {
  return "data: " + ErrorBody(status) + "\n" + kDone;
}

std::string SseEvent(const std::string& json) { return "data: " + json + "\n\n"; }

std::string SseEvent(std::string_view type, const std::string& json) {
  return StrCat("event: ", type, "\n", SseEvent(json));
}

std::unique_ptr<AnswerForm> NewCompletionForm(const CompletionOptions& options,
                                              AnswerHeader header) {
  return std::make_unique<TextCompletionForm>(options, std::move(header));
}

std::unique_ptr<AnswerForm> NewChatForm(const CompletionOptions& options, AnswerHeader header) {
  return std::make_unique<ChatForm>(options, std::move(header));
}

}  // namespace polysketch
