#include <utility>

#include "server/convert/status_map.h"
#include "server/http/http_errors.h"
#include "server/http/json_text.h"
#include "server/openai/block_form.h"
#include "server/openai/growing_json.h"
#include "server/openai/responses_request.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

class ResponseForm final : public BlockForm {
 public:
  ResponseForm(const std::string& id, std::string echo, AnswerHeader header,
               const CompletionOptions& options, std::function<void(const std::string&)> keep)
      : BlockForm(options, std::move(header), "call_", /*repeats=*/true),
        id_(id),
        echo_(std::move(echo)),
        reasons_(options.reasoning.has_value()),
        keep_(std::move(keep)) {}

  // The events at the end have the text four times, and those at both ends the echo twice.
  int64_t KeptBytes() const override {
    size_t bytes = 6 * echo_.size();
    for (const AnswerBlock& item : blocks()) bytes += 10 * (item.text.size() + item.name.size());
    return BlockForm::KeptBytes() + static_cast<int64_t>(bytes);
  }

  std::string Whole(Answer* answer) override {
    (void)Take(&answer->choices[0]);
    (void)EndItems(*answer);
    return WholeResponse(*answer);
  }

  std::string Begin(const Answer& /*answer*/) override {
    SetStreams();
    const std::string response = WithEcho(Response("in_progress"));
    std::string events = ResponseEvent("created", response);
    events += ResponseEvent("in_progress", response);
    // With tools the first item may be a call.
    return has_tools() || reasons_ ? events : events += BeginBlock({});
  }

  std::string End(const Answer& answer) override {
    std::string events = EndItems(answer);
    return events += ResponseEvent(StatusOf(answer), WholeResponse(answer));
  }

  std::string Failure(const Status& status) override {
    Json response = Response("failed");
    const bool busy = HttpStatus(status) == 429;
    response["error"] = {{"code", busy ? "rate_limit_exceeded" : "server_error"},
                         {"message", ShownMessage(status)}};
    return ResponseEvent("failed", WithEcho(response));
  }

 private:
  static bool IsWhole(const Answer& answer) { return answer.choices[0].finish_reason == "stop"; }
  static std::string_view StatusOf(const Answer& answer) {
    return IsWhole(answer) ? "completed" : "incomplete";
  }
  // The type of a part of text, and what begins the names of its events.
  static std::string_view PartType(Kind kind) {
    return kind == Kind::kReasoning ? "reasoning_text" : "output_text";
  }

  std::string Began() override {
    Json added = NewEvent("output_item.added");
    added["output_index"] = index();
    added["item"] = ItemJson(index(), /*with_text=*/false);
    const Kind kind = blocks().back().kind;
    return Sse(added) + (kind == Kind::kCall ? "" : PartEvent("content_part.added", kind, ""));
  }

  std::string Grew(const std::string& text) override {
    const Kind kind = blocks().back().kind;
    Json event = ItemEvent(kind == Kind::kCall ? "function_call_arguments.delta"
                                               : StrCat(PartType(kind), ".delta"));
    event["delta"] = text;
    if (kind == Kind::kText) event["logprobs"] = Json::array();
    return Sse(event);
  }

  std::string Ended() override {
    const AnswerBlock& item = blocks().back();
    std::string events;
    if (item.kind == Kind::kCall) {
      Json event = ItemEvent("function_call_arguments.done");
      event["name"] = item.name;
      event["arguments"] = item.text;
      events = Sse(event);
    } else {
      Json event = ItemEvent(StrCat(PartType(item.kind), ".done"));
      event["text"] = item.text;
      if (item.kind == Kind::kText) event["logprobs"] = Json::array();
      events = Sse(event) + PartEvent("content_part.done", item.kind, item.text);
    }
    Json done = NewEvent("output_item.done");
    done["output_index"] = index();
    done["item"] = ItemJson(index(), /*with_text=*/true);
    return events += Sse(done);
  }

  std::string EndItems(const Answer& answer) {
    std::string events = blocks().empty() ? BeginBlock({}) : "";
    return events += EndBlock(StatusOf(answer));
  }

  // The first item has the id of the request alone.
  std::string ItemId(int64_t index) const {
    const Kind kind = blocks()[static_cast<size_t>(index)].kind;
    return StrCat(kind == Kind::kText        ? "msg_"
                  : kind == Kind::kReasoning ? "rs_"
                                             : "fc_",
                  header().request_id, index == 0 ? "" : StrCat("_", index));
  }

  Json NewEvent(std::string_view name) {
    return {{"type", StrCat("response.", name)}, {"sequence_number", sequence_number_++}};
  }
  // Of the last item.
  Json ItemEvent(std::string_view name) {
    Json event = NewEvent(name);
    event["item_id"] = ItemId(index());
    event["output_index"] = index();
    if (blocks().back().kind != Kind::kCall) event["content_index"] = 0;
    return event;
  }
  std::string PartEvent(std::string_view name, Kind kind, const std::string& text) {
    Json event = ItemEvent(name);
    event["part"] = TextPart(kind, text);
    return Sse(event);
  }
  std::string ResponseEvent(std::string_view name, std::string_view response) {
    Json event = NewEvent(name);
    event["response"] = Json::array();
    return SseEvent(StrCat("response.", name), WithMember(event, "response", response));
  }
  static std::string Sse(const Json& event) {
    return SseEvent(event["type"].get_ref<const std::string&>(), JsonText(event));
  }

  static Json TextPart(Kind kind, const std::string& text) {
    if (kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"},
            {"annotations", Json::array()},
            {"logprobs", Json::array()},
            {"text", text}};
  }
  Json ItemJson(int64_t index, bool with_text) const {
    const AnswerBlock& item = blocks()[static_cast<size_t>(index)];
    if (item.kind == Kind::kCall) {
      return {{"id", ItemId(index)},     {"type", "function_call"},
              {"status", item.status},   {"arguments", with_text ? item.text : ""},
              {"call_id", item.call_id}, {"name", item.name}};
    }
    const bool message = item.kind == Kind::kText;
    Json json = {{"id", ItemId(index)},
                 {"type", message ? "message" : "reasoning"},
                 {"status", item.status}};
    message ? json["role"] = "assistant" : json["summary"] = Json::array();
    json["content"] = Json::array();
    if (with_text) json["content"].push_back(TextPart(item.kind, item.text));
    return json;
  }
  Json Response(std::string_view status) const {
    Json json;
    json["id"] = id_;
    json["object"] = "response";
    json["created_at"] = header().created;
    json["status"] = status;
    json["error"] = nullptr;
    json["incomplete_details"] = nullptr;
    json["model"] = header().model;
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
  std::string WholeResponse(const Answer& answer) const {
    Json json = Response(StatusOf(answer));
    if (!IsWhole(answer)) json["incomplete_details"] = {{"reason", "max_output_tokens"}};
    for (size_t i = 0; i < blocks().size(); ++i)
      json["output"].push_back(ItemJson(static_cast<int64_t>(i), /*with_text=*/true));
    const v1::Usage& usage = answer.usage;
    json["usage"] = {
        {"input_tokens", usage.prompt_tokens()},
        {"input_tokens_details",
         {{"cached_tokens", usage.cached_tokens()}, {"cache_write_tokens", 0}}},
        {"output_tokens", usage.completion_tokens()},
        {"output_tokens_details", {{"reasoning_tokens", answer.ReasoningTokens().value_or(0)}}},
        {"total_tokens", usage.prompt_tokens() + usage.completion_tokens()}};
    std::string response = WithEcho(json);
    if (keep_) keep_(response);
    return response;
  }

  const std::string id_;
  const std::string echo_;  // an object with members
  const bool reasons_;      // the output may begin with reasoning
  const std::function<void(const std::string&)> keep_;
  int64_t sequence_number_ = 0;
};

}  // namespace

std::unique_ptr<AnswerForm> NewResponseForm(const std::string& id, std::string echo,
                                            AnswerHeader header, const CompletionOptions& options,
                                            std::function<void(const std::string&)> keep) {
  return std::make_unique<ResponseForm>(id, std::move(echo), std::move(header), options,
                                        std::move(keep));
}

}  // namespace polysketch
