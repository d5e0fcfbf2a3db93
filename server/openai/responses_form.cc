#include "server/openai/responses_form.h"

#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "server/http/http_errors.h"
#include "server/http/json_text.h"
#include "server/openai/tools.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

struct OutputItem {
  enum class Kind { kMessage, kReasoning, kCall };
  Kind kind = Kind::kMessage;
  std::string id;
  std::string text = {};  // of the message or reasoning; arguments of the call
  std::string call_id = {};
  std::string name = {};  // of the tool
  std::string_view status = "in_progress";
};
using Kind = OutputItem::Kind;

std::string_view IdPrefix(Kind kind) {
  return kind == Kind::kMessage ? "msg_" : kind == Kind::kReasoning ? "rs_" : "fc_";
}

class ResponseForm final : public AnswerForm {
 public:
  ResponseForm(const std::string& id, std::string echo, AnswerHeader header,
               const CompletionOptions& options, std::function<void(const std::string&)> keep)
      : id_(id),
        echo_(std::move(echo)),
        header_(std::move(header)),
        reasons_(options.reasoning.has_value()),
        tools_(options.tools),
        parser_(tools_ ? NewToolParser(*tools_) : nullptr),
        keep_(std::move(keep)) {}

  Json TakeLogprobs(Logprobs*) const override { return {}; }

  // The events at the end have the text four times, and those at both ends the echo twice.
  int64_t KeptBytes() const override {
    size_t bytes = parser_ == nullptr ? 0 : parser_->held_bytes();
    for (const OutputItem& item : items_) bytes += 10 * (item.text.size() + item.name.size());
    return static_cast<int64_t>(bytes + 6 * echo_.size());
  }

  std::string Whole(Answer* answer) override {
    (void)Take(0, answer);
    (void)EndItems(*answer);
    return Ended(*answer);
  }

  std::string Begin(const Answer& /*answer*/) override {
    streams_ = true;
    const std::string response = WithEcho(Response("in_progress"));
    std::string events = ResponseEvent("created", response);
    events += ResponseEvent("in_progress", response);
    // With tools the first item may be a call.
    return parser_ == nullptr && !reasons_ ? events += BeginItem(Kind::kMessage) : events;
  }

  std::string Piece(size_t index, Answer* answer) override { return Take(index, answer); }

  std::string End(const Answer& answer) override {
    std::string events = EndItems(answer);
    return events += ResponseEvent(StatusOf(answer), Ended(answer));
  }

  std::string Failure(const Status& status) override {
    Json response = Response("failed");
    const bool busy = HttpStatus(status) == 429;
    response["error"] = {{"code", busy ? "rate_limit_exceeded" : "server_error"},
                         {"message", status.message()}};
    return ResponseEvent("failed", WithEcho(response));
  }

 private:
  static bool IsWhole(const Answer& answer) { return answer.choices[0].finish_reason == "stop"; }
  static std::string_view StatusOf(const Answer& answer) {
    return IsWhole(answer) ? "completed" : "incomplete";
  }

  // Adds output to the items. Returns the events.
  std::string Take(size_t index, Answer* answer) {
    AnswerChoice& choice = answer->choices[index];
    std::string events = TakeText(Kind::kReasoning, std::exchange(choice.reasoning, ""));
    return events += TakeAnswer(std::exchange(choice.text, ""), *answer);
  }

  std::string TakeAnswer(const std::string& text, const Answer& answer) {
    if (parser_ == nullptr) return TakeText(Kind::kMessage, text);
    const bool last = !answer.choices[0].finish_reason.empty(), cut = last && !IsWhole(answer);
    const ToolEvents parts = parser_->Read(text, last);
    std::string events;
    for (const ToolEvent& part : parts) {
      switch (part.kind) {
        case ToolEvent::Kind::kText:
          events += TakeText(Kind::kMessage, part.text);
          break;
        case ToolEvent::Kind::kCall:
          events += BeginCall(part.text);
          break;
        case ToolEvent::Kind::kArguments:
          items_.back().text += part.text;
          events += ItemEvent("function_call_arguments.delta", {{"delta", part.text}});
          break;
        case ToolEvent::Kind::kEnd:
          events += EndItem("completed");
          break;
        case ToolEvent::Kind::kBroken:
          events += BreakCall(part.text, cut && &part == &parts.back());
          break;
      }
    }
    return events;
  }

  // Text of a message, or reasoning.
  std::string TakeText(Kind kind, const std::string& text) {
    if (text.empty()) return "";
    std::string events;
    if (!InText(kind)) {
      events = EndText();
      events += BeginItem(kind);
    }
    items_.back().text += text;
    Json delta = {{"delta", text}};
    if (kind == Kind::kMessage) delta["logprobs"] = Json::array();
    return events += PartEvent(StrCat(PartType(kind), ".delta"), delta);
  }

  // A stream has the call already. `cut`: by the end of the output.
  std::string BreakCall(const std::string& text, bool cut) {
    if (streams_ && cut) return EndItem("incomplete");
    std::string events = streams_ ? EndItem("incomplete") : "";
    if (!streams_) {
      items_.pop_back();
      // The message before it goes on.
      if (!items_.empty() && items_.back().kind == Kind::kMessage)
        items_.back().status = "in_progress";
    }
    return events += TakeText(Kind::kMessage, text);
  }

  bool InText(Kind kind) const {
    return !items_.empty() && items_.back().kind == kind && items_.back().status == "in_progress";
  }
  // Ends the item of text that the output is in.
  std::string EndText() {
    return InText(Kind::kMessage) || InText(Kind::kReasoning) ? EndItem("completed") : "";
  }

  std::string BeginItem(Kind kind) {
    items_.push_back({.kind = kind, .id = ItemId(kind)});
    std::string events = ItemAdded();
    return events += PartEvent("content_part.added", {{"part", TextPart(kind, "")}});
  }

  std::string BeginCall(const std::string& name) {
    std::string events = EndText();
    items_.push_back({.kind = Kind::kCall,
                      .id = ItemId(Kind::kCall),
                      .call_id = NewCallId(tools_->form),
                      .name = name});
    return events += ItemAdded();
  }

  std::string ItemAdded() {
    return Event("output_item.added", {{"output_index", Index()},
                                       {"item", ItemJson(items_.back(), /*with_text=*/false)}});
  }

  // Ends the last item.
  std::string EndItem(std::string_view status) {
    OutputItem& item = items_.back();
    item.status = status;
    std::string events;
    if (item.kind == Kind::kCall) {
      events = ItemEvent("function_call_arguments.done",
                         {{"name", item.name}, {"arguments", item.text}});
    } else {
      Json done = {{"text", item.text}};
      if (item.kind == Kind::kMessage) done["logprobs"] = Json::array();
      events = PartEvent(StrCat(PartType(item.kind), ".done"), done);
      events += PartEvent("content_part.done", {{"part", TextPart(item.kind, item.text)}});
    }
    return events += Event("output_item.done", {{"output_index", Index()},
                                                {"item", ItemJson(item, /*with_text=*/true)}});
  }

  std::string EndItems(const Answer& answer) {
    std::string events = items_.empty() ? BeginItem(Kind::kMessage) : "";
    const bool open = InText(Kind::kMessage) || InText(Kind::kReasoning);
    return open ? events += EndItem(StatusOf(answer)) : events;
  }

  int64_t Index() const { return std::ssize(items_) - 1; }
  // Of the next item; the first has the id of the request alone.
  std::string ItemId(Kind kind) const {
    return StrCat(IdPrefix(kind), header_.request_id,
                  items_.empty() ? "" : StrCat("_", items_.size()));
  }

  std::string Event(std::string_view name, const Json& fields) {
    const std::string type = StrCat("response.", name);
    Json event;
    event["type"] = type;
    event["sequence_number"] = sequence_number_++;
    event.update(fields);
    return SseEvent(type, JsonText(event));
  }
  std::string ResponseEvent(std::string_view name, std::string_view response) {
    const std::string type = StrCat("response.", name);
    Json event;
    event["type"] = type;
    event["sequence_number"] = sequence_number_++;
    event["response"] = Json::array();
    return SseEvent(type, WithMember(event, "response", response));
  }
  // Of the last item.
  std::string ItemEvent(std::string_view name, const Json& fields) {
    Json all = {{"item_id", items_.back().id}, {"output_index", Index()}};
    all.update(fields);
    return Event(name, all);
  }
  std::string PartEvent(std::string_view name, const Json& fields) {
    Json all = {{"content_index", 0}};
    all.update(fields);
    return ItemEvent(name, all);
  }

  // The type of a part of text, and what begins the names of its events.
  static std::string_view PartType(Kind kind) {
    return kind == Kind::kReasoning ? "reasoning_text" : "output_text";
  }
  static Json TextPart(Kind kind, const std::string& text) {
    if (kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"},
            {"annotations", Json::array()},
            {"logprobs", Json::array()},
            {"text", text}};
  }
  static Json ItemJson(const OutputItem& item, bool with_text) {
    if (item.kind == Kind::kCall) {
      return {{"id", item.id},           {"type", "function_call"},
              {"status", item.status},   {"arguments", with_text ? item.text : ""},
              {"call_id", item.call_id}, {"name", item.name}};
    }
    const bool message = item.kind == Kind::kMessage;
    Json json = {
        {"id", item.id}, {"type", message ? "message" : "reasoning"}, {"status", item.status}};
    message ? json["role"] = "assistant" : json["summary"] = Json::array();
    json["content"] = Json::array();
    if (with_text) json["content"].push_back(TextPart(item.kind, item.text));
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
    Json json = Response(StatusOf(answer));
    if (!IsWhole(answer)) json["incomplete_details"] = {{"reason", "max_output_tokens"}};
    for (const OutputItem& item : items_)
      json["output"].push_back(ItemJson(item, /*with_text=*/true));
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
  const AnswerHeader header_;
  const bool reasons_;  // the output may begin with reasoning
  const std::optional<ToolParsing> tools_;
  const std::unique_ptr<ToolParser> parser_;  // null without tools
  const std::function<void(const std::string&)> keep_;
  bool streams_ = false;
  std::vector<OutputItem> items_;  // those before the last have ended
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
