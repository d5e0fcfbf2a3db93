#include <string>
#include <utility>

#include "server/anthropic/messages.h"
#include "server/http/http_errors.h"
#include "server/http/json_text.h"
#include "server/openai/block_form.h"
#include "server/openai/growing_json.h"

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

using Kind = AnswerBlock::Kind;

// The block as it begins, without what follows in deltas.
Json BlockJson(const AnswerBlock& block) {
  if (block.kind == Kind::kText) return {{"type", "text"}, {"text", ""}};
  if (block.kind == Kind::kReasoning)
    return {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
  return {
      {"type", "tool_use"}, {"id", block.call_id}, {"name", block.name}, {"input", Json::object()}};
}

std::string WholeBlock(const AnswerBlock& block) {
  Json json = BlockJson(block);
  if (block.kind != Kind::kCall) {
    json[block.kind == Kind::kText ? "text" : "thinking"] = block.text;
    return JsonText(json);
  }
  json["input"] = Json::array();
  return WithMember(json, "input", block.text);
}

class MessagesForm final : public BlockForm {
 public:
  MessagesForm(const CompletionOptions& options, AnswerHeader header)
      : BlockForm(options, std::move(header), "toolu_", /*repeats=*/false) {}

  std::string Whole(Answer* answer) override {
    (void)Take(&answer->choices[0]);
    std::string content = "[";
    for (const AnswerBlock& block : blocks()) {
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
    SetStreams();
    Json message = Message();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] = UsageJson(answer.prompt_tokens[0].value_or(0), 0, 0);
    return Event("message_start", {{"message", std::move(message)}}) + Silence();
  }

  std::string End(const Answer& answer) override {
    const std::string events =
        EndBlock("completed") +
        Event("message_delta", {{"delta", StopJson(answer)}, {"usage", UsageJson(answer.usage)}});
    return events + Event("message_stop", Json::object());
  }

  std::string Silence() const override { return Event("ping", Json::object()); }

  std::string Failure(const Status& status) override {
    return StrCat("event: error\ndata: ", AnthropicErrorBody(status, header().request_id), "\n");
  }

 private:
  Json Message() const {
    Json json;
    json["id"] = StrCat("msg_", header().request_id);
    json["type"] = "message";
    json["role"] = "assistant";
    json["model"] = header().model;
    json["content"] = Json::array();
    return json;
  }

  Json StopJson(const Answer& answer) const {
    const AnswerChoice& choice = answer.choices[0];
    Json reason = "end_turn", sequence;
    if (choice.finish_reason == "length") {
      reason = "max_tokens";
    } else if (calls() > 0) {
      reason = "tool_use";
    } else if (!choice.matched_stop.empty()) {
      reason = "stop_sequence";
      sequence = choice.matched_stop;
    }
    return {{"stop_reason", std::move(reason)}, {"stop_sequence", std::move(sequence)}};
  }

  std::string Began() override {
    return Event("content_block_start",
                 {{"index", index()}, {"content_block", BlockJson(blocks().back())}});
  }

  std::string Grew(const std::string& text) override {
    const Kind kind = blocks().back().kind;
    Json delta;
    if (kind == Kind::kText) delta = {{"type", "text_delta"}, {"text", text}};
    if (kind == Kind::kReasoning) delta = {{"type", "thinking_delta"}, {"thinking", text}};
    if (kind == Kind::kCall) delta = {{"type", "input_json_delta"}, {"partial_json", text}};
    return Event("content_block_delta", {{"index", index()}, {"delta", std::move(delta)}});
  }

  std::string Ended() override { return Event("content_block_stop", {{"index", index()}}); }
};

}  // namespace

std::unique_ptr<AnswerForm> NewMessagesForm(const CompletionOptions& options, AnswerHeader header) {
  return std::make_unique<MessagesForm>(options, std::move(header));
}

}  // namespace polysketch
