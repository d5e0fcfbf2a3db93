#include "server/openai/responses_form.h"

#include <utility>

#include "server/http/http_errors.h"
#include "server/http/json_text.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

class ResponseForm final : public AnswerForm {
 public:
  ResponseForm(const std::string& id, std::string echo, AnswerHeader header)
      : id_(id),
        item_id_(StrCat("msg_", header.request_id)),
        echo_(std::move(echo)),
        header_(std::move(header)) {}

  Json TakeLogprobs(Logprobs*) const override { return {}; }

  // The events at the end have the text four times, and those at both ends the echo twice.
  int64_t KeptBytes() const override {
    return 10 * static_cast<int64_t>(text_.size()) + 6 * static_cast<int64_t>(echo_.size());
  }

  std::string Whole(Answer* answer) override {
    text_ = std::move(answer->choices[0].text);
    return Ended(*answer);
  }

  std::string Begin() override {
    const std::string response = WithEcho(Response("in_progress"));
    std::string events = ResponseEvent("created", response);
    events += ResponseEvent("in_progress", response);
    events += Event("output_item.added",
                    {{"output_index", 0}, {"item", Message("in_progress", /*with_text=*/false)}});
    return events += PartEvent("content_part.added", {{"part", TextPart()}});
  }

  std::string Piece(size_t index, Answer* answer) override {
    const std::string delta = std::exchange(answer->choices[index].text, "");
    text_ += delta;
    if (delta.empty()) return "";
    return PartEvent("output_text.delta", {{"delta", delta}, {"logprobs", Json::array()}});
  }

  std::string End(const Answer& answer) override {
    const bool whole = answer.choices[0].finish_reason == "stop";
    const std::string_view status = whole ? "completed" : "incomplete";
    std::string events =
        PartEvent("output_text.done", {{"text", text_}, {"logprobs", Json::array()}});
    events += PartEvent("content_part.done", {{"part", TextPart()}});
    events += Event("output_item.done",
                    {{"output_index", 0}, {"item", Message(status, /*with_text=*/true)}});
    return events += ResponseEvent(status, Ended(answer));
  }

  std::string Failure(const Status& status) override {
    Json response = Response("failed");
    const bool busy = HttpStatus(status) == 429;
    response["error"] = {{"code", busy ? "rate_limit_exceeded" : "server_error"},
                         {"message", status.message()}};
    return ResponseEvent("failed", WithEcho(response));
  }

 private:
  std::string Event(std::string_view name, const Json& fields) {
    const std::string type = StrCat("response.", name);
    Json event;
    event["type"] = type;
    event["sequence_number"] = sequence_number_++;
    event.update(fields);
    return StrCat("event: ", type, "\n", SseEvent(JsonText(event)));
  }
  std::string ResponseEvent(std::string_view name, std::string_view response) {
    const std::string type = StrCat("response.", name);
    Json event;
    event["type"] = type;
    event["sequence_number"] = sequence_number_++;
    event["response"] = Json::array();
    return StrCat("event: ", type, "\n", SseEvent(WithMember(event, "response", response)));
  }
  std::string PartEvent(std::string_view name, const Json& fields) {
    Json all = {{"item_id", item_id_}, {"output_index", 0}, {"content_index", 0}};
    all.update(fields);
    return Event(name, all);
  }

  Json TextPart() const {
    return {{"type", "output_text"},
            {"annotations", Json::array()},
            {"logprobs", Json::array()},
            {"text", text_}};
  }
  Json Message(std::string_view status, bool with_text) const {
    Json json = {{"id", item_id_}, {"type", "message"}, {"status", status}, {"role", "assistant"}};
    json["content"] = Json::array();
    if (with_text) json["content"].push_back(TextPart());
    return json;
  }
  Json Response(std::string_view status) const {
    Json json;
    json["id"] = id_;
    json["object"] = "response";
    json["created_at"] = header_.created;
    json["status"] = status;
    json["error"] = nullptr;
    json["incomplete_details"] = nullptr;
    json["model"] = header_.model;
    json["output"] = Json::array();
    json["usage"] = nullptr;
    return json;
  }
  // The text of a response, with the fields of the request that it repeats.
  std::string WithEcho(const Json& response) const {
    std::string text = JsonText(response);
    text.back() = ',';  // the brace
    return text.append(echo_, 1);
  }
  std::string Ended(const Answer& answer) const {
    const bool whole = answer.choices[0].finish_reason == "stop";
    Json json = Response(whole ? "completed" : "incomplete");
    if (!whole) json["incomplete_details"] = {{"reason", "max_output_tokens"}};
    json["output"].push_back(Message(whole ? "completed" : "incomplete", /*with_text=*/true));
    const v1::Usage& usage = answer.usage;
    json["usage"] = {{"input_tokens", usage.prompt_tokens()},
                     {"input_tokens_details",
                      {{"cached_tokens", usage.cached_tokens()}, {"cache_write_tokens", 0}}},
                     {"output_tokens", usage.completion_tokens()},
                     {"output_tokens_details", {{"reasoning_tokens", 0}}},
                     {"total_tokens", usage.prompt_tokens() + usage.completion_tokens()}};
    return WithEcho(json);
  }

  const std::string id_, item_id_;
  const std::string echo_;  // an object with members
  const AnswerHeader header_;
  std::string text_;  // of the message, as far as it was sent
  int64_t sequence_number_ = 0;
};

}  // namespace

std::unique_ptr<AnswerForm> NewResponseForm(const std::string& id, std::string echo,
                                            AnswerHeader header) {
  return std::make_unique<ResponseForm>(id, std::move(echo), std::move(header));
}

}  // namespace polysketch
