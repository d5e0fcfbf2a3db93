#include "server/anthropic/messages_form.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/http/http_errors.h"
#include "server/http/json_text.h"
#include "server/openai/tools.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

std::string Event(std::string_view type, const Json& fields) {
  Json event;
  event["type"] = type;
  event.update(fields);
  return SseEvent(type, JsonText(event));
}

// What the prefix cache provided is no part of the input tokens.
Json UsageJson(int64_t prompt_tokens, int64_t cached_tokens, int64_t output_tokens) {
  Json json;
  json["input_tokens"] = prompt_tokens - cached_tokens;
  json["cache_creation_input_tokens"] = 0;
  json["cache_read_input_tokens"] = cached_tokens;
  json["output_tokens"] = output_tokens;
  return json;
}

Json UsageJson(const v1::Usage& usage) {
  return UsageJson(usage.prompt_tokens(), usage.cached_tokens(), usage.completion_tokens());
}

// A block of the content.
struct Block {
  enum class Kind { kText, kThinking, kCall };
  Kind kind = Kind::kText;
  std::string call_id = {};
  std::string name = {};  // of the tool
  std::string text = {};  // of a whole message; arguments of the call
};
using Kind = Block::Kind;

// The block as it begins, without what follows in deltas.
Json BlockJson(const Block& block) {
  if (block.kind == Kind::kText) return {{"type", "text"}, {"text", ""}};
  if (block.kind == Kind::kThinking)
    return {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
  return {
      {"type", "tool_use"}, {"id", block.call_id}, {"name", block.name}, {"input", Json::object()}};
}

class MessagesForm final : public AnswerForm {
 public:
  MessagesForm(const CompletionOptions& options, AnswerHeader header)
      : tools_(options.tools),
        header_(std::move(header)),
        parser_(tools_ ? NewToolParser(*tools_) : nullptr) {}

  Json TakeLogprobs(Logprobs*) const override { return {}; }

  int64_t KeptBytes() const override {
    return parser_ == nullptr ? 0 : static_cast<int64_t>(parser_->held_bytes() + call_.text.size());
  }

  std::string Whole(Answer* answer) override {
    (void)Take(&answer->choices[0]);
    std::string content = "[";
    for (const Block& block : blocks_) {
      if (content.size() > 1) content += ',';
      content += WholeBlock(block);
    }
    content += ']';
    Json message = Message();
    message.update(StopJson(*answer));
    message["usage"] = UsageJson(answer->usage);
    return WithMember(message, "content", content);
  }

  std::string Begin(const Answer& answer) override {
    streams_ = true;
    Json message = Message();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] = UsageJson(answer.prompt_tokens[0].value_or(0), 0, 0);
    return Event("message_start", {{"message", std::move(message)}}) + Silence();
  }

  std::string Piece(size_t index, Answer* answer) override { return Take(&answer->choices[index]); }

  std::string End(const Answer& answer) override {
    const std::string events =
        EndBlock() +
        Event("message_delta", {{"delta", StopJson(answer)}, {"usage", UsageJson(answer.usage)}});
    return events + Event("message_stop", Json::object());
  }

  std::string Silence() const override { return Event("ping", Json::object()); }

  std::string Failure(const Status& status) override {
    return StrCat("event: error\ndata: ", AnthropicErrorBody(status, header_.request_id), "\n");
  }

 private:
  Json Message() const {
    Json json;
    json["id"] = StrCat("msg_", header_.request_id);
    json["type"] = "message";
    json["role"] = "assistant";
    json["model"] = header_.model;
    json["content"] = Json::array();
    return json;
  }

  Json StopJson(const Answer& answer) const {
    const AnswerChoice& choice = answer.choices[0];
    Json reason = "end_turn", sequence;
    if (choice.finish_reason == "length") {
      reason = "max_tokens";
    } else if (calls_ > 0) {
      reason = "tool_use";
    } else if (!choice.matched_stop.empty()) {
      reason = "stop_sequence";
      sequence = choice.matched_stop;
    }
    return {{"stop_reason", std::move(reason)}, {"stop_sequence", std::move(sequence)}};
  }

  static std::string WholeBlock(const Block& block) {
    Json json = BlockJson(block);
    if (block.kind != Kind::kCall) {
      json[block.kind == Kind::kText ? "text" : "thinking"] = block.text;
      return JsonText(json);
    }
    json["input"] = Json::array();
    return WithMember(json, "input", block.text);
  }

  // Takes what the choice has. Returns the events of a stream.
  std::string Take(AnswerChoice* choice) {
    const std::string thoughts = TakeText(Kind::kThinking, std::exchange(choice->reasoning, ""));
    return thoughts + TakeAnswer(choice);
  }

  std::string TakeAnswer(AnswerChoice* choice) {
    const std::string text = std::exchange(choice->text, "");
    if (parser_ == nullptr) return TakeText(Kind::kText, text);
    std::string events;
    for (const ToolEvent& part : parser_->Read(text, !choice->finish_reason.empty())) {
      switch (part.kind) {
        case ToolEvent::Kind::kText:
          events += TakeText(Kind::kText, part.text);
          break;
        case ToolEvent::Kind::kCall:
          call_ = {
              .kind = Kind::kCall, .call_id = NewCallId(tools_->form, "toolu_"), .name = part.text};
          break;
        case ToolEvent::Kind::kArguments:
          call_.text += part.text;
          break;
        case ToolEvent::Kind::kEnd:
          ++calls_;
          events += WholeCall(std::exchange(call_, {}));
          break;
        case ToolEvent::Kind::kBroken:
          call_ = {};
          events += TakeText(Kind::kText, part.text);
          break;
      }
    }
    return events;
  }

  // Text, or what the model thinks.
  std::string TakeText(Kind kind, const std::string& text) {
    if (text.empty()) return "";
    std::string events;
    if (!open_ || blocks_.back().kind != kind) events = BeginBlock({.kind = kind});
    const Json delta = kind == Kind::kText ? Json{{"type", "text_delta"}, {"text", text}}
                                           : Json{{"type", "thinking_delta"}, {"thinking", text}};
    return events += Grow(delta, text);
  }

  // Nothing takes a block back: a call is one when it is complete.
  std::string WholeCall(Block call) {
    const std::string arguments = std::exchange(call.text, "");
    std::string events = BeginBlock(std::move(call));
    events += Grow({{"type", "input_json_delta"}, {"partial_json", arguments}}, arguments);
    return events += EndBlock();
  }

  std::string BeginBlock(Block block) {
    const std::string end = EndBlock();
    // A stream keeps the last one, to know what it is.
    if (streams_) blocks_.clear();
    blocks_.push_back(std::move(block));
    open_ = true;
    ++begun_;
    if (!streams_) return "";
    return end + Event("content_block_start",
                       {{"index", begun_ - 1}, {"content_block", BlockJson(blocks_.back())}});
  }

  // Adds to the last block.
  std::string Grow(Json delta, const std::string& text) {
    if (streams_)
      return Event("content_block_delta", {{"index", begun_ - 1}, {"delta", std::move(delta)}});
    blocks_.back().text += text;
    return "";
  }

  std::string EndBlock() {
    if (!std::exchange(open_, false) || !streams_) return "";
    return Event("content_block_stop", {{"index", begun_ - 1}});
  }

  const std::optional<ToolParsing> tools_;
  const AnswerHeader header_;
  const std::unique_ptr<ToolParser> parser_;  // null without tools
  bool streams_ = false;
  std::vector<Block> blocks_;
  Block call_;         // that is being read
  bool open_ = false;  // the last block has not ended
  int64_t begun_ = 0;  // blocks
  int calls_ = 0;      // that are complete
};

}  // namespace

std::unique_ptr<AnswerForm> NewMessagesForm(const CompletionOptions& options, AnswerHeader header) {
  return std::make_unique<MessagesForm>(options, std::move(header));
}

}  // namespace polysketch
