#include "server/openai/answer_form.h"

#include <memory>
#include <utility>

#include "server/http/http_errors.h"
#include "server/http/json_text.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kDone[] = "data: [DONE]\n\n";

Json Head(std::string_view prefix, std::string_view object, const AnswerHeader& header) {
  Json json;
  json["id"] = StrCat(prefix, header.request_id);
  json["object"] = object;
  json["created"] = header.created;
  json["model"] = header.model;
  json["choices"] = Json::array();
  return json;
}

Json ReasonJson(const AnswerChoice& choice) {
  return choice.finish_reason.empty() ? Json() : Json(choice.finish_reason);
}

// {"prompt_tokens", "completion_tokens", ...}.
Json UsageJson(const v1::Usage& usage) {
  Json json;
  json["prompt_tokens"] = usage.prompt_tokens();
  json["completion_tokens"] = usage.completion_tokens();
  json["total_tokens"] = usage.prompt_tokens() + usage.completion_tokens();
  json["prompt_tokens_details"] = {{"cached_tokens", usage.cached_tokens()}};
  return json;
}

// Adds the fields of this server: the session after the completion, and how to continue a migrated
// one.
void AddServerFields(const Answer& answer, Json* json) {
  if (answer.session.has_value())
    (*json)["session"] = {{"id", answer.session->session()}, {"tokens", answer.session->tokens()}};
  if (!answer.resume_token.empty()) (*json)["resume_token"] = answer.resume_token;
}

// Completions and chat completions: choices in an envelope, usage as the last event.
class ChoicesForm : public AnswerForm {
 public:
  ChoicesForm(const CompletionOptions& options, AnswerHeader header)
      : options_(options), header_(std::move(header)) {}

  std::string Whole(Answer* answer) final {
    Json body = Envelope(header_, /*stream=*/false);
    for (size_t i = 0; i < answer->choices.size(); ++i)
      body["choices"].push_back(WholeChoice(i, &answer->choices[i]));
    body["usage"] = UsageJson(answer->usage);
    AddServerFields(*answer, &body);
    return JsonText(body);
  }

  std::string Piece(size_t index, Answer* answer) final {
    AnswerChoice* choice = &answer->choices[index];
    Json event = Envelope(header_, /*stream=*/true);
    event["choices"].push_back(PieceChoice(index, choice));
    choice->text.clear();
    if (options_.include_usage) event["usage"] = UsageSoFar(index, *answer);
    if (!choice->finish_reason.empty()) AddServerFields(*answer, &event);
    return SseEvent(event);
  }

  std::string End(const Answer& answer) final {
    if (!options_.include_usage) return kDone;
    Json event = Envelope(header_, /*stream=*/true);
    event["usage"] = UsageJson(answer.usage);
    return SseEvent(event) + kDone;
  }

 protected:
  virtual Json Envelope(const AnswerHeader& header, bool stream) const = 0;
  virtual Json WholeChoice(size_t index, AnswerChoice* choice) = 0;
  virtual Json PieceChoice(size_t index, AnswerChoice* choice) = 0;

 private:
  // Of a choice and its prompt; null unless the client asks for it.
  Json UsageSoFar(size_t index, const Answer& answer) const {
    if (!options_.continuous_usage) return {};
    const size_t prompt = index / static_cast<size_t>(options_.choices);
    const int64_t before =
        prompt < answer.prompt_tokens.size() ? answer.prompt_tokens[prompt].value_or(0) : 0;
    const int64_t tokens = answer.choices[index].tokens;
    return {{"prompt_tokens", before},
            {"completion_tokens", tokens},
            {"total_tokens", before + tokens}};
  }

  const CompletionOptions options_;
  const AnswerHeader header_;
};

class CompletionForm final : public ChoicesForm {
 public:
  using ChoicesForm::ChoicesForm;

 private:
  Json Envelope(const AnswerHeader& header, bool) const override {
    return Head("cmpl-", "text_completion", header);
  }
  Json WholeChoice(size_t index, AnswerChoice* choice) override {
    Json json;
    json["index"] = index;
    json["text"] = choice->text;
    json["logprobs"] =
        choice->logprobs.has_value() ? choice->logprobs->TakeForCompletion() : Json();
    json["finish_reason"] = ReasonJson(*choice);
    if (!choice->matched_stop.empty()) json["stop_reason"] = choice->matched_stop;
    return json;
  }
  Json PieceChoice(size_t index, AnswerChoice* choice) override {
    return WholeChoice(index, choice);
  }
};

class ChatForm final : public ChoicesForm {
 public:
  using ChoicesForm::ChoicesForm;

 private:
  Json Envelope(const AnswerHeader& header, bool stream) const override {
    return Head("chatcmpl-", stream ? "chat.completion.chunk" : "chat.completion", header);
  }
  static Json ChoiceJson(size_t index, const char* field, Json message, AnswerChoice* choice) {
    Json json;
    json["index"] = index;
    json[field] = std::move(message);
    json["logprobs"] = choice->logprobs.has_value() ? choice->logprobs->TakeForChat() : Json();
    json["finish_reason"] = ReasonJson(*choice);
    if (!choice->matched_stop.empty()) json["stop_reason"] = choice->matched_stop;
    return json;
  }
  Json WholeChoice(size_t index, AnswerChoice* choice) override {
    const Json message = {{"role", "assistant"}, {"content", choice->text}, {"refusal", nullptr}};
    return ChoiceJson(index, "message", message, choice);
  }
  // The first piece of a choice names the role.
  Json PieceChoice(size_t index, AnswerChoice* choice) override {
    if (index >= began_.size()) began_.resize(index + 1);
    Json delta = Json::object();
    if (!began_[index]) delta["role"] = "assistant";
    if (!began_[index] || !choice->text.empty()) delta["content"] = choice->text;
    began_[index] = true;
    return ChoiceJson(index, "delta", std::move(delta), choice);
  }

  std::vector<bool> began_;  // by choice
};

}  // namespace

std::string AnswerForm::Failure(const Status& status) {
  return "data: " + ErrorBody(status) + "\n" + kDone;
}

std::string SseEvent(const Json& json) { return "data: " + JsonText(json) + "\n\n"; }

std::unique_ptr<AnswerForm> NewCompletionForm(const CompletionOptions& options,
                                              AnswerHeader header) {
  return std::make_unique<CompletionForm>(options, std::move(header));
}

std::unique_ptr<AnswerForm> NewChatForm(const CompletionOptions& options, AnswerHeader header) {
  return std::make_unique<ChatForm>(options, std::move(header));
}

}  // namespace polysketch
