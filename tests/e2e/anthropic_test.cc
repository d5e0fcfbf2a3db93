// Anthropic's Messages API over plain sockets; tests/clients/openai/anthropic_test.py runs the real
// client.
#include <signal.h>

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>

#include "gtest/gtest.h"
#include "tests/e2e/chat_events.h"
#include "tests/e2e/model_folder.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"

namespace polysketch::e2e {
namespace {

using nlohmann::json;

// The text, or the input of the call, of the deltas.
std::string Deltas(const std::vector<Event>& events, const char* field) {
  std::string text;
  for (const Event& event : events) {
    if (event.name == "content_block_delta")
      text += event.data.at("delta").at(field).get<std::string>();
  }
  return text;
}

json Body(int max_tokens) {
  return {{"model", "demo"},
          {"messages", Messages("It was late")},
          {"max_tokens", max_tokens},
          {"temperature", 0}};
}

json Tools() {
  return json::parse(R"([{"name": "get_weather", "input_schema": {"type": "object",
      "properties": {"city": {"enum": ["Paris", "Rome"]}, "at": {"type": "integer", "minimum": 0, "maximum": 20}},
      "required": ["city", "at"], "additionalProperties": false}}])");
}

class Anthropic : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<ModelFolder>(kToolTemplate);
    server_ = std::make_unique<Server>(
        ServerOptions{.model = folder_->path(),
                      .flags = {"--http-listen", "127.0.0.1:0", "--prefix-cache-min-tokens", "64",
                                "--max-body-bytes", "1000000"}});
  }
  static void TearDownTestSuite() {
    server_.reset();
    folder_.reset();
  }
  static HttpAnswer Post(const json& body, const std::string& path = "/v1/messages") {
    return Http(server_->http_address(), path, body.dump());
  }
  static json Ok(const json& body, const std::string& path = "/v1/messages") {
    const HttpAnswer answer = Post(body, path);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body);
  }
  static inline std::unique_ptr<ModelFolder> folder_;
  static inline std::unique_ptr<Server> server_;
};

TEST_F(Anthropic, AMessageIsTheAnswerOfAChatCompletion) {
  json body = Body(24);
  const json chat =
      json::parse(Http(server_->http_address(), "/v1/chat/completions", body.dump()).body);
  const HttpAnswer answer =
      Http(server_->http_address(), "/v1/messages", body.dump(), {{"x-request-id", "mine"}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_NE(answer.head.find("\r\nrequest-id: mine\r\n"), std::string::npos) << answer.head;
  const json message = json::parse(answer.body);
  EXPECT_EQ(message.at("id"), "msg_mine");
  EXPECT_EQ(message.at("content").at(0).at("text"),
            chat.at("choices").at(0).at("message").at("content"));
  EXPECT_EQ(message.at("stop_reason"), "max_tokens");
  EXPECT_EQ(message.at("usage").at("output_tokens"), 24);
  EXPECT_EQ(message.at("usage").at("input_tokens"), chat.at("usage").at("prompt_tokens"));
  EXPECT_EQ(Ok(body, "/v1/messages/count_tokens"),
            json({{"input_tokens", chat.at("usage").at("prompt_tokens")}}));

  // A stream has the same text, in typed events.
  body["stream"] = true;
  const std::vector<Event> events = Events(Post(body).body);
  EXPECT_EQ(Deltas(events, "text"), message.at("content").at(0).at("text"));
  std::vector<std::string> names;
  for (const Event& event : events) {
    EXPECT_EQ(event.data.at("type"), event.name);
    if (names.empty() || names.back() != event.name) names.push_back(event.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"message_start", "ping", "content_block_start",
                                             "content_block_delta", "content_block_stop",
                                             "message_delta", "message_stop"}));
  EXPECT_EQ(events[0].data.at("message").at("usage").at("input_tokens"),
            message.at("usage").at("input_tokens"));
  EXPECT_EQ(events.at(events.size() - 2).data.at("usage"), message.at("usage"));
  EXPECT_EQ(events.at(events.size() - 2).data.at("delta").at("stop_reason"), "max_tokens");

  // A stop sequence, and an answer that has begun.
  const std::string text = message.at("content").at(0).at("text");
  const std::string stop = text.substr(text.size() / 2, 5);
  body = Body(24);
  body["stop_sequences"] = {stop};
  const json stopped = Ok(body);
  EXPECT_EQ(stopped.at("content").at(0).at("text"), text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped.at("stop_reason"), "stop_sequence");
  EXPECT_EQ(stopped.at("stop_sequence"), stop);
}

TEST_F(Anthropic, WhatTheCacheProvidesIsNoInput) {
  std::string text;
  while (text.size() < 2000) text += "The king said that it was late. ";
  json body = Body(4);
  body["system"] =
      json::array({{{"type", "text"}, {"text", text}, {"cache_control", {{"type", "ephemeral"}}}}});
  const json first = Ok(body).at("usage"), second = Ok(body).at("usage");
  EXPECT_EQ(first.at("cache_read_input_tokens"), 0);
  EXPECT_GT(second.at("cache_read_input_tokens"), 64);
  EXPECT_EQ(second.at("input_tokens").get<int>() + second.at("cache_read_input_tokens").get<int>(),
            first.at("input_tokens"));
  EXPECT_EQ(Ok(body, "/v1/messages/count_tokens").at("input_tokens"), first.at("input_tokens"));
}

TEST_F(Anthropic, CallsOfTools) {
  json body = Body(300);
  body.erase("temperature");
  body["tools"] = Tools();
  for (int seed = 0; seed < 4; ++seed) {
    body["seed"] = seed;
    body["stream"] = false;
    body["tool_choice"] = {{"type", seed % 2 == 0 ? "any" : "tool"},
                           {"disable_parallel_tool_use", true}};
    if (seed % 2 == 1) body["tool_choice"]["name"] = "get_weather";
    const json message = Ok(body);
    EXPECT_EQ(message.at("stop_reason"), "tool_use");
    ASSERT_EQ(message.at("content").size(), 1u);
    const json& call = message.at("content").at(0);
    EXPECT_EQ(call.at("type"), "tool_use");
    EXPECT_EQ(call.at("name"), "get_weather");
    EXPECT_TRUE(call.at("id").get<std::string>().starts_with("toolu_"));
    EXPECT_TRUE(call.at("input").at("city") == "Paris" || call.at("input").at("city") == "Rome");
    EXPECT_TRUE(call.at("input").at("at") >= 0 && call.at("input").at("at") <= 20);
    body["stream"] = true;
    const std::vector<Event> events = Events(Post(body).body);
    EXPECT_EQ(json::parse(Deltas(events, "partial_json")), call.at("input"));

    // The result of the tool follows.
    json turn = Body(4);
    turn["tools"] = Tools();
    turn["messages"].push_back({{"role", "assistant"}, {"content", message.at("content")}});
    turn["messages"].push_back(
        {{"role", "user"},
         {"content",
          {{{"type", "tool_result"}, {"tool_use_id", call.at("id")}, {"content", "sunny"}}}}});
    EXPECT_EQ(Ok(turn).at("usage").at("output_tokens"), 4);
  }
}

TEST_F(Anthropic, ErrorsHaveAnthropicsShape) {
  const auto expect = [](const HttpAnswer& answer, int status, const std::string& type,
                         const std::string& words, const std::string& code) {
    EXPECT_EQ(answer.status, status) << answer.body;
    const json body = json::parse(answer.body);
    EXPECT_EQ(body.at("type"), "error");
    const json& error = body.at("error");
    EXPECT_EQ(error.at("type"), type) << error;
    EXPECT_NE(error.at("message").get<std::string>().find(words), std::string::npos) << error;
    EXPECT_EQ(error.at("details").at("error_code"), code) << error;
    const std::string id = body.at("request_id");
    EXPECT_NE(answer.head.find(StrCat("\r\nrequest-id: ", id, "\r\n")), std::string::npos);
  };
  const auto with = [](const std::string& name, const json& value) {
    json body = Body(4);
    body[name] = value;
    return body;
  };
  const std::string invalid = "invalid_request_error", argument = "INVALID_ARGUMENT";
  for (const std::string path : {"/v1/messages", "/v1/messages/count_tokens"}) {
    expect(Post({{"model", "demo"}}, path), 400, invalid, "messages: expected", argument);
    expect(Post(with("max_token", 1), path), 400, invalid, "max_token: expected a field", argument);
    expect(Post(with("chat_template_kwargs", json::array({1})), path), 400, invalid,
           "chat_template_kwargs: expected an object, found an array", argument);
    expect(Post(with("model", "claude"), path), 404, "not_found_error", "found \"claude\"",
           "NOT_FOUND");
    expect(Http(server_->http_address(), path), 405, invalid, "the method: expected POST",
           "METHOD_NOT_ALLOWED");
    expect(Post(with("system", std::string(1'000'000, 'x')), path), 413, "request_too_large",
           "the body: expected at most", "BODY_TOO_LARGE");
    // As a page of the same origin sends it.
    expect(Http(server_->http_address(), path, "{}",
                {{"Content-Type", "text/plain"}, {"Sec-Fetch-Site", "same-origin"}}),
           400, invalid, "Content-Type", argument);
  }
  expect(Post({}, "/v1/messages/batches"), 404, "not_found_error", "the path", "NO_SUCH_PATH");
  expect(Post(with("thread", {{"type", "create"}})), 400, invalid, "send the whole conversation",
         "thread_unsupported_request");
  // What the call refuses is named as the request names it.
  expect(Post(with("top_p", 2)), 400, invalid, "top_p: expected", argument);
  expect(Post(with("stop_sequences", json(std::vector<std::string>(17, "a")))), 400, invalid,
         "stop_sequences: expected", argument);
  // Other paths keep OpenAI's.
  EXPECT_FALSE(json::parse(Post({}, "/v1/chat/completions").body).contains("type"));
}

TEST_F(Anthropic, AClientThatLeavesFreesItsSlot) {
  json endless = Body(1 << 20);
  endless["ignore_eos"] = true;
  endless["stream"] = true;
  {
    const HttpStream stream(server_->http_address(), "/v1/messages", endless.dump());
    EXPECT_NE(stream.ReadUntil("content_block_delta").find("message_start"), std::string::npos);
    EXPECT_TRUE(server_->ComesToRun(1));
  }
  EXPECT_TRUE(server_->BecomesIdle());
}

TEST(AnthropicDrain, AMessageThatIsCutIsAnError) {
  const ModelFolder folder(kToolTemplate);
  Server server({.model = folder.path(),
                 .flags = {"--http-listen", "127.0.0.1:0", "--drain-timeout", "300ms"}});
  json endless = Body(1 << 20);
  endless["ignore_eos"] = true;
  const auto start = [&](bool stream) {
    endless["stream"] = stream;
    return std::async(std::launch::async, [&server, body = endless.dump()] {
      return Http(server.http_address(), "/v1/messages", body);
    });
  };
  auto stream = start(true), whole = start(false);
  ASSERT_TRUE(server.ComesToRun(2));
  server.process().Signal(SIGTERM);
  const std::vector<Event> events = Events(stream.get().body);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().name, "error");
  EXPECT_EQ(events.back().data.at("error").at("type"), "overloaded_error") << events.back().data;
  const HttpAnswer refused = whole.get();
  EXPECT_EQ(refused.status, 529) << refused.body;
  EXPECT_TRUE(refused.head.starts_with("HTTP/1.1 529 \r\n")) << refused.head;
  EXPECT_EQ(server.process().Wait(), 0) << server.process().StandardError();
}

TEST(AnthropicWithoutTemplate, SaysSo) {
  const Server server({.flags = {"--http-listen", "127.0.0.1:0"}});
  const HttpAnswer answer = Http(server.http_address(), "/v1/messages", Body(1).dump());
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find("chat template"), std::string::npos) << answer.body;
}

}  // namespace
}  // namespace polysketch::e2e
