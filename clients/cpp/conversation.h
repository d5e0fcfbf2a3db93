// A conversation over POST /v1/responses of a server: what is sent for a turn, and what its stream of events says. The
// server keeps the conversation in a session; the texts are kept here too, for a server that has lost it. Knows no socket.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace polysketch {

// The answer to a turn, from the server-sent events of its stream.
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
  // Why the answer ended early ("max_output_tokens"); empty: it did not.
  const std::string& cut() const { return cut_; }

 private:
  Status AddEvent(std::string_view data);

  const std::function<void(std::string_view)> show_;
  std::string bytes_;  // of an event whose end has not arrived
  std::string id_;
  std::string text_;
  std::string cut_;
  Status failure_;
  bool ended_ = false;
};

struct ChatOptions {
  std::string system;  // instructions; empty: those of the model's chat template
  std::optional<float> temperature;
  std::optional<int32_t> max_tokens;
};

// Texts are UTF-8.
class Conversation {
 public:
  explicit Conversation(ChatOptions options) : options_(std::move(options)) {}

  // The body of the request for the next turn: `line` after the response before, or, if `whole`, after the
  // texts of all turns.
  std::string Request(const std::string& line, bool whole) const;
  // Whether an answer of this HTTP status and body says that the response before cannot be continued, so
  // that the whole conversation may be sent.
  bool MustBeWhole(int http_status, const std::string& body) const;
  // Adds the turn of `line`, whose answer has arrived.
  void Add(const std::string& line, const AnswerStream& answer);

  // The response that holds the conversation; empty before the first turn.
  const std::string& last_id() const { return last_id_; }

 private:
  struct Turn {
    std::string line;
    std::string answer;
  };

  const ChatOptions options_;
  std::vector<Turn> turns_;
  std::string last_id_;
};

// The message of an error that the OpenAI API has sent; `body` itself if it has another form.
std::string ApiError(int http_status, const std::string& body);

}  // namespace polysketch
