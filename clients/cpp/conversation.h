// A conversation over POST /v1/responses of a server: what is sent for a turn, and what its stream
// of events says. The server keeps the conversation in a session; its items are kept here too, for
// a server that has lost it. Knows no socket.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace polysketch {

// A call of a tool that the model asks for.
struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON
};

// The answer to a request, from the server-sent events of its stream.
class AnswerStream {
 public:
  // `show` gets the pieces of the text as they arrive.
  explicit AnswerStream(std::function<void(std::string_view)> show) : show_(std::move(show)) {}

  // Takes the next bytes of the stream. An error: the bytes are no events of a response.
  Status Add(std::string_view bytes);
  // After the last byte: OK if the answer is whole; else why it is not, as the server says.
  Status Finish() const;

  const std::string& id() const { return id_; }      // of the response
  const std::string& text() const { return text_; }  // of the answer
  const std::vector<ToolCall>& calls() const { return calls_; }
  // Why the answer ended early ("max_output_tokens"); empty: it did not.
  const std::string& cut() const { return cut_; }

 private:
  Status AddEvent(std::string_view data);

  const std::function<void(std::string_view)> show_;
  std::string bytes_;  // of an event whose end has not arrived
  std::string id_;
  std::string text_;
  std::vector<ToolCall> calls_;
  std::string cut_;
  Status failure_;
  bool ended_ = false;
};

struct ChatOptions {
  std::string system;  // instructions; empty: those of the model's chat template
  std::optional<float> temperature;
  std::optional<int32_t> max_tokens;
  nlohmann::json tools = nullptr;  // as the Responses API takes them; null: none
};

// The tools of a file: an array of functions in the form of chat completions, {"type": "function",
// "function": {"name": ...}}, or of the Responses API, {"type": "function", "name": ...}.
Result<nlohmann::json> ParseTools(std::string_view text);

// Texts are UTF-8. A copy goes on apart from the original.
class Conversation {
 public:
  explicit Conversation(ChatOptions options) : options_(std::move(options)) {}

  // Adds a message of the user, or the result of a call.
  void Say(const std::string& text);
  void Return(const std::string& call_id, const std::string& output);
  // The body of the request for the next answer: what was added after the response before, or, if
  // `whole`, the whole conversation.
  std::string Request(bool whole) const;
  // Whether an answer of this HTTP status and body says that the response before cannot be
  // continued, so that the whole conversation may be sent.
  bool MustBeWhole(int http_status, const std::string& body) const;
  // Adds the answer to the last request.
  void Add(const AnswerStream& answer);

  // Removes the last message of the user and what follows it. Returns its text; nullopt: there is
  // none.
  std::optional<std::string> TakeBack();
  void SetSystem(std::string text);
  const std::string& system() const { return options_.system; }
  // Messages of the user.
  int turns() const;
  // The response that holds the conversation; empty: the next request is whole.
  const std::string& last_id() const { return last_id_; }

  // The conversation as the body of a request to /v1/responses, and back.
  std::string Save() const;
  Status Load(std::string_view text);

 private:
  ChatOptions options_;
  nlohmann::json items_ = nlohmann::json::array();  // input items of the Responses API
  size_t held_ = 0;                                 // of them, by the response last_id_
  std::string last_id_;
};

// The message of an error that the OpenAI API has sent; `body` itself if it has another form.
std::string ApiError(int http_status, const std::string& body);

}  // namespace polysketch
