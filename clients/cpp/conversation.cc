#include "clients/cpp/conversation.h"

#include <nlohmann/json.hpp>
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

std::string Conversation::Request(const std::string& line, bool whole) const {
  json body = {{"stream", true}};
  if (options_.temperature) body["temperature"] = *options_.temperature;
  if (options_.max_tokens) body["max_output_tokens"] = *options_.max_tokens;
  if (!options_.system.empty()) body["instructions"] = options_.system;
  json messages = json::array();
  if (whole) {
    for (const Turn& turn : turns_) {
      messages.push_back(Message("user", turn.line));
      messages.push_back(Message("assistant", turn.answer));
    }
  } else if (!last_id_.empty()) {
    body["previous_response_id"] = last_id_;
  }
  messages.push_back(Message("user", line));
  body["input"] = std::move(messages);
  return body.dump();
}

bool Conversation::MustBeWhole(int http_status, const std::string& body) const {
  if (last_id_.empty() || (http_status != 404 && http_status != 400)) return false;
  const Result<json> error = ParseJson(body);
  return error.ok() && Text(Member(*error, "error"), "param") == "previous_response_id";
}

void Conversation::Add(const std::string& line, const AnswerStream& answer) {
  turns_.push_back({line, answer.text()});
  last_id_ = answer.id();
}

std::string ApiError(int http_status, const std::string& body) {
  const Result<json> answer = ParseJson(body);
  std::string message = answer.ok() ? Text(Member(*answer, "error"), "message") : "";
  if (message.empty()) message = StrCat("HTTP status ", http_status, ": ", Abbreviate(body));
  if (http_status == 401) message += " (--api-key KEY or POLYSKETCH_API_KEY sets the key)";
  return message;
}

}  // namespace polysketch
