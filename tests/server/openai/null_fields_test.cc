// A field that is null counts as absent, in every API and at every depth.
#include <functional>
#include <set>
#include <string>

#include "server/anthropic/messages.h"
#include "server/http/json_text.h"
#include "server/openai/response_items.h"
#include "server/openai/responses_request.h"
#include "tests/server/openai/chat_fixture.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

// Their members are the client's own.
const std::set<std::string> kFree = {
    "arguments", "chat_template_kwargs", "input_schema", "logit_bias",
    "metadata",  "parameters",           "schema"};

// The template gets functions as they are written, and responses repeat them and the format.
const std::set<std::string> kAsWritten = {"/tools/0/function/description",
                                          "/tools/0/function/strict",
                                          "/tools/0/function/parameters",
                                          "/tools/0/description",
                                          "/tools/0/strict",
                                          "/tools/0/parameters",
                                          "/text/format/name"};

std::string Show(const Result<CompletionJob>& job) {
  return job.ok() ? job->common.DebugString() : job.status().message();
}

class NullFields : public testing::ChatModel {
 protected:
  void SetUp() override {
    ChatModel::SetUp();
    UseTemplate(
        "{{ tools | tojson }}<tool_call>{%- for m in messages %}{{ m.role }}: {{ m.content }}"
        "{{ m.reasoning_content }}{{ m.tool_call_id }}{{ (m.tool_calls or []) | tojson }}\n{%- "
        "endfor %}");
  }

  // Compares what `read` makes of the body with each member null, and with none.
  void Check(const std::string& text, const std::function<std::string(const std::string&)>& read) {
    const Json body = Json::parse(text);
    const std::string whole = read(text);
    ASSERT_EQ(whole.find("expected"), std::string::npos) << whole;
    int fields = 0;
    const Json flat = body.flatten();
    for (const auto& [pointer, value] : flat.items()) {
      for (Json::json_pointer at(pointer); !at.empty(); at.pop_back()) {
        const Json::json_pointer parent = at.parent_pointer();
        if (!body.at(parent).is_object() || IsFree(parent) || kAsWritten.contains(at.to_string()))
          continue;
        Json null = body, none = body;
        null[at] = nullptr;
        none[parent].erase(at.back());
        EXPECT_TRUE(read(null.dump()) == read(none.dump())) << at.to_string();
        ++fields;
      }
    }
    EXPECT_GT(fields, 20);
  }

 private:
  static bool IsFree(Json::json_pointer at) {
    for (; !at.empty(); at.pop_back()) {
      if (kFree.contains(at.back())) return true;
    }
    return false;
  }
};

TEST_F(NullFields, OfChatCompletions) {
  Check(
      R"({"model": "m", "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 5, "n": 1,
      "temperature": 0.5, "seed": 1, "stop": ["a"], "logprobs": true, "top_logprobs": 2, "user": "u",
      "logit_bias": {"5": 1}, "metadata": {"a": "b"}, "parallel_tool_calls": true, "reasoning_effort": "low",
      "response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": true, "schema": {"type": "object"}}},
      "tools": [{"type": "function", "function": {"name": "f", "description": "d", "strict": false,
        "parameters": {"type": "object"}}}], "tool_choice": "auto", "chat_template_kwargs": {"a": 1},
      "messages": [{"role": "system", "content": "s", "name": "n"},
        {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": "c", "refusal": "r", "reasoning_content": "t", "tool_calls": [
          {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "r"}]})",
      [this](const std::string& text) {
        const auto body = ParseCompletionBody(text);
        return body.ok() ? Show(ToChatJob(*body, model_)) : body.status().message();
      });
}

TEST_F(NullFields, OfResponses) {
  Check(
      R"({"model": "m", "stream": false, "max_output_tokens": 5, "temperature": 0.5, "top_p": 0.5, "store": true,
      "instructions": "i", "metadata": {"a": "b"}, "truncation": "auto", "include": ["web_search_call.results"],
      "reasoning": {"effort": "low", "summary": "auto"}, "parallel_tool_calls": false, "background": false,
      "text": {"verbosity": "low", "format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}},
      "tools": [{"type": "function", "name": "f", "description": "d", "strict": false, "parameters": {"type": "object"}}],
      "tool_choice": "auto", "input": [{"type": "message", "id": "m1", "status": "completed", "role": "user",
        "content": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning", "id": "r1", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "function_call", "id": "f1", "call_id": "1", "name": "f", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "id": "o1", "call_id": "1", "output": "r", "status": "completed"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "y", "annotations": []}]}]})",
      [this](const std::string& text) -> std::string {
        const auto body = ParseCompletionBody(text);
        if (!body.ok()) return body.status().message();
        const auto job = ToResponseJob(*body, model_);
        if (!job.ok()) return job.status().message();
        return StrCat(job->job.common.DebugString(), job->echo, job->store,
                      InputItems(body->at("input"), "r"));
      });
}

TEST_F(NullFields, OfMessages) {
  Check(
      R"({"model": "m", "stream": true, "max_tokens": 5, "temperature": 0.5, "top_k": 3, "stop_sequences": ["a"],
      "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}], "metadata": {"user_id": "u"},
      "thinking": {"type": "enabled", "budget_tokens": 5, "display": "x"}, "service_tier": "auto",
      "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
      "tools": [{"type": "custom", "name": "f", "description": "d", "strict": false, "input_schema": {"type": "object"},
        "cache_control": {"type": "ephemeral"}, "defer_loading": false, "allowed_callers": ["direct"]}],
      "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
      "messages": [{"role": "user", "content": [{"type": "text", "text": "x", "citations": []}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"},
          {"type": "tool_use", "id": "1", "name": "f", "input": {}, "caller": {"type": "direct"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "is_error": false,
          "content": [{"type": "text", "text": "r"}]}]}]})",
      [this](const std::string& text) {
        const auto body = ParseCompletionBody(text);
        return body.ok() ? Show(ToMessagesJob(*body, model_)) : body.status().message();
      });
}

}  // namespace
}  // namespace polysketch
