#include "clients/cpp/conversation.h"

#include <algorithm>
#include <utility>

#include "base/bounded_json.h"
#include "clients/cpp/server_sent_events.h"

namespace polysketch {
namespace {

using nlohmann::json;

// The last event has the whole text. No answer is as long.
constexpr size_t kMaxEventBytes = size_t{64} << 20;

// A string of an object; empty: there is none.
std::string Text(const json& object, const char* name) {
  if (!object.is_object()) return "";
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

const json& Member(const json& object, const char* name) {
  static const json null;
  if (!object.is_object()) return null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

json Message(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

bool IsOfUser(const json& item) { return Text(item, "role") == "user"; }

}  // namespace

Status AnswerStream::Add(std::string_view bytes) {
  bytes_ += bytes;
  PS_RETURN_IF_ERROR(TakeEvents(&bytes_, [this](std::string_view data) { return AddEvent(data); }));
  if (bytes_.size() <= kMaxEventBytes) return Status();
  return InvalidArgument("expected events of at most ", kMaxEventBytes,
                         " bytes, found a longer one");
}

Status AnswerStream::AddEvent(std::string_view data) {
  if (data == "[DONE]") return Status();
  PS_ASSIGN_OR_RETURN(const json event, ParseJson(data));
  const std::string type = Text(event, "type");
  const json& response = Member(event, "response");
  if (type == "response.output_text.delta") {
    const std::string delta = Text(event, "delta");
    text_ += delta;
    show_(delta);
  } else if (type == "response.completed" || type == "response.incomplete") {
    ended_ = true;
    id_ = Text(response, "id");
    cut_ = Text(Member(response, "incomplete_details"), "reason");
    for (const json& item : Member(response, "output")) {
      if (Text(item, "type") == "function_call")
        calls_.push_back({Text(item, "call_id"), Text(item, "name"), Text(item, "arguments")});
    }
  } else if (type == "response.failed" || event.contains("error")) {
    const json& error = Member(type.empty() ? event : response, "error");
    failure_ = Unavailable(Text(error, "message"));
  }
  return Status();
}

Status AnswerStream::Finish() const {
  if (!failure_.ok() || ended_) return failure_;
  return Unavailable("the server ended the connection before the answer");
}

Result<json> ParseTools(std::string_view text) {
  PS_ASSIGN_OR_RETURN(json tools, ParseJson(text));
  if (!tools.is_array() || tools.empty())
    return InvalidArgument("expected an array of tools, found ",
                           tools.is_array() ? "an empty one" : tools.type_name());
  for (json& tool : tools) {
    const json function = Member(tool, "function");
    if (function.is_object()) {
      tool = function;
      tool["type"] = "function";
    }
    if (Text(tool, "type") != "function" || Text(tool, "name").empty())
      return InvalidArgument(
          "expected a tool as {\"type\": \"function\", \"name\": ..., \"parameters\": ...}, found ",
          Abbreviate(tool.dump()));
  }
  return tools;
}

void Conversation::Say(const std::string& text) { items_.push_back(Message("user", text)); }

void Conversation::Return(const std::string& call_id, const std::string& output) {
  items_.push_back({{"type", "function_call_output"}, {"call_id", call_id}, {"output", output}});
}

std::string Conversation::Request(bool whole) const {
  json body = {{"stream", true}};
  if (options_.temperature) body["temperature"] = *options_.temperature;
  if (options_.max_tokens) body["max_output_tokens"] = *options_.max_tokens;
  if (!options_.system.empty()) body["instructions"] = options_.system;
  if (!options_.tools.is_null()) body["tools"] = options_.tools;
  if (whole || last_id_.empty()) {
    body["input"] = items_;
  } else {
    body["previous_response_id"] = last_id_;
    body["input"] = json::array();
    body["input"].insert(body["input"].end(), items_.begin() + static_cast<std::ptrdiff_t>(held_),
                         items_.end());
  }
  return body.dump();
}

bool Conversation::MustBeWhole(int http_status, const std::string& body) const {
  if (last_id_.empty() || (http_status != 404 && http_status != 400)) return false;
  const Result<json> error = ParseJson(body);
  return error.ok() && Text(Member(*error, "error"), "param") == "previous_response_id";
}

void Conversation::Add(const AnswerStream& answer) {
  if (!answer.text().empty() || answer.calls().empty())
    items_.push_back(Message("assistant", answer.text()));
  for (const ToolCall& call : answer.calls()) {
    items_.push_back({{"type", "function_call"},
                      {"call_id", call.id},
                      {"name", call.name},
                      {"arguments", call.arguments}});
  }
  held_ = items_.size();
  last_id_ = answer.id();
}

std::optional<std::string> Conversation::TakeBack() {
  size_t at = items_.size();
  while (at > 0 && !IsOfUser(items_[at - 1])) --at;
  if (at == 0) return std::nullopt;
  std::string text = Text(items_[at - 1], "content");
  items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(at) - 1, items_.end());
  last_id_.clear();
  return text;
}

void Conversation::SetSystem(std::string text) {
  options_.system = std::move(text);
  last_id_.clear();  // which holds the former one
}

int Conversation::turns() const {
  return static_cast<int>(std::ranges::count_if(items_, IsOfUser));
}

std::string Conversation::Save() const {
  nlohmann::ordered_json body;
  if (!options_.system.empty()) body["instructions"] = options_.system;
  body["input"] = items_;
  return body.dump(2) + "\n";
}

Status Conversation::Load(std::string_view text) {
  PS_ASSIGN_OR_RETURN(json body, ParseJson(text));
  const json& items = Member(body, "input");
  const auto is_item = [](const json& item) {
    const std::string type = Text(item, "type");
    return !Text(item, "role").empty() || type == "function_call" || type == "function_call_output";
  };
  if (!items.is_array() || !std::ranges::all_of(items, is_item))
    return InvalidArgument("expected a conversation as /save writes it, found another file");
  options_.system = Text(body, "instructions");
  items_ = items;
  held_ = 0;
  last_id_.clear();
  return Status();
}

std::string ApiError(int http_status, const std::string& body) {
  const Result<json> answer = ParseJson(body);
  std::string message = answer.ok() ? Text(Member(*answer, "error"), "message") : "";
  if (message.empty()) message = StrCat("HTTP status ", http_status, ": ", Abbreviate(body));
  if (http_status == 401) message += " (--api-key KEY or POLYSKETCH_API_KEY sets the key)";
  return message;
}

}  // namespace polysketch
