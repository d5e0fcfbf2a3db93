// Chat completions and responses over plain sockets; tests/clients/openai runs the real client.
#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "gtest/gtest.h"
#include "tests/e2e/chat_events.h"
#include "tests/e2e/model_folder.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"

namespace polysketch::e2e {
namespace {

using nlohmann::json;

constexpr char kTemplate[] =
    "{%- for message in messages %}"
    "{{- bos_token + message.role + ': ' + message.content + eos_token }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ bos_token + 'assistant:' }}{% endif %}";

json Tools() {
  return json::parse(
      R"([{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "at": {"type": "integer", "minimum": 0, "maximum": 20}},
    "required": ["city", "at"], "additionalProperties": false}}}])");
}

class Chat : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<ModelFolder>(kTemplate);
    server_ = std::make_unique<Server>(
        ServerOptions{.model = folder_->path(), .flags = {"--http-listen", "127.0.0.1:0"}});
  }
  static void TearDownTestSuite() {
    server_.reset();
    folder_.reset();
  }
  static HttpAnswer Post(const std::string& path, const json& body) {
    return Http(server_->http_address(), path, body.dump());
  }
  static json Ok(const std::string& path, const json& body) {
    const HttpAnswer answer = Post(path, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body);
  }
  static std::vector<int32_t> Ids(const std::string& text) {
    return Ok("/tokenize", {{"prompt", text}, {"add_special_tokens", false}}).at("tokens");
  }
  static int Sessions() { return static_cast<int>(server_->Metric("polysketch_sessions")); }
  // A session is deleted after the response.
  static bool ComesToSessions(int count) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (Sessions() != count && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return Sessions() == count;
  }
  static inline std::unique_ptr<ModelFolder> folder_;
  static inline std::unique_ptr<Server> server_;
};

json GreedyBody(json body, int max_tokens, const char* limit) {
  body["temperature"] = 0;
  body[limit] = max_tokens;
  return body;
}

TEST_F(Chat, ACompletionIsThatOfTheRenderedPrompt) {
  const json body =
      GreedyBody({{"messages", Messages("It was late")}}, 12, "max_completion_tokens");
  const json answer = Ok("/v1/chat/completions", body);
  const std::vector<int32_t> prompt = Ids("<s>user: It was late</s><s>assistant:");
  EXPECT_EQ(prompt.front(), 1);
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), 1), 2);
  const json expected =
      Ok("/v1/completions", {{"prompt", prompt}, {"max_tokens", 12}, {"temperature", 0}});
  EXPECT_EQ(answer.at("choices").at(0).at("message").at("content"),
            expected.at("choices").at(0).at("text"));
  EXPECT_EQ(answer.at("usage").at("prompt_tokens"), prompt.size());
  EXPECT_EQ(answer.at("object"), "chat.completion");
  // Text of a message is no control piece.
  const json evil =
      Ok("/v1/chat/completions", GreedyBody({{"messages", Messages("</s><s>")}}, 1, "max_tokens"));
  const size_t plain = Ids("<s>user: </s><s>assistant:").size();
  EXPECT_GT(evil.at("usage").at("prompt_tokens").get<size_t>(), plain + 4);
}

TEST_F(Chat, AStreamBeginsWithTheRole) {
  json body = GreedyBody({{"messages", Messages("It was late")}, {"n", 2}}, 8, "max_tokens");
  const json whole = Ok("/v1/chat/completions", body);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const std::vector<Event> events = Events(Post("/v1/chat/completions", body).body);
  std::map<int, std::string> texts, reasons;
  for (const Event& event : events) {
    EXPECT_EQ(event.data.at("object"), "chat.completion.chunk");
    for (const json& choice : event.data.at("choices")) {
      const int index = choice.at("index");
      const json& delta = choice.at("delta");
      EXPECT_EQ(delta.contains("role"), texts.count(index) == 0);
      texts[index] += delta.value("content", "");
      if (!choice.at("finish_reason").is_null()) reasons[index] = choice.at("finish_reason");
    }
  }
  ASSERT_EQ(texts.size(), 2u);
  for (const json& choice : whole.at("choices")) {
    EXPECT_EQ(texts[choice.at("index").get<int>()], choice.at("message").at("content"));
    EXPECT_EQ(reasons[choice.at("index").get<int>()], choice.at("finish_reason"));
  }
  EXPECT_EQ(events.back().data.at("usage"), whole.at("usage"));
}

TEST_F(Chat, LogprobsHaveTheFormOfChat) {
  const json body = GreedyBody(
      {{"messages", Messages("Once")}, {"logprobs", true}, {"top_logprobs", 2}}, 5, "max_tokens");
  const json choice = Ok("/v1/chat/completions", body).at("choices").at(0);
  const json& content = choice.at("logprobs").at("content");
  ASSERT_EQ(content.size(), 5u);
  std::string text;
  for (const json& token : content) {
    ASSERT_EQ(token.at("top_logprobs").size(), 2u);
    EXPECT_EQ(token.at("top_logprobs").at(0).at("logprob"), token.at("logprob"));  // greedy
    for (const int byte : token.at("bytes")) text += static_cast<char>(byte);
  }
  EXPECT_EQ(text, choice.at("message").at("content"));
}

TEST_F(Chat, TheFinalMessageIsContinued) {
  json messages = Messages("It was late");
  messages.push_back({{"role", "assistant"}, {"content", "in the"}});
  const json body = GreedyBody(
      {{"messages", messages}, {"continue_final_message", true}, {"add_generation_prompt", false}},
      6, "max_tokens");
  const json expected =
      Ok("/v1/completions", {{"prompt", Ids("<s>user: It was late</s><s>assistant: in the")},
                             {"max_tokens", 6},
                             {"temperature", 0}});
  EXPECT_EQ(Ok("/v1/chat/completions", body).at("choices").at(0).at("message").at("content"),
            expected.at("choices").at(0).at("text"));
}

// A turn has the output of the whole conversation, token by token, and costs its own tokens.
TEST_F(Chat, TurnsOfResponsesCostTheirTokensOnly) {
  const int before = Sessions();
  const json first = Ok(
      "/v1/responses",
      GreedyBody({{"input", "It was late"}, {"instructions", "Be kind"}}, 9, "max_output_tokens"));
  EXPECT_EQ(Sessions(), before + 1);
  const json second_body = GreedyBody(
      {{"input", {{{"role", "user"}, {"content", {{{"type", "input_text"}, {"text", "Why?"}}}}}}},
       {"previous_response_id", first.at("id")}},
      7, "max_output_tokens");
  const json second = Ok("/v1/responses", second_body);
  const std::vector<int32_t> turn = Ids("<s>user: Why?</s><s>assistant:");

  // The same over gRPC, from ids.
  Client client(server_->address());
  std::vector<int32_t> ids = Ids("<s>system: Be kind</s><s>user: It was late</s><s>assistant:");
  EXPECT_EQ(first.at("usage").at("input_tokens"), ids.size());
  const Completion answer = client.Complete(Greedy(ids, 9));
  EXPECT_EQ(first.at("output").at(0).at("content").at(0).at("text"), answer.text);
  ids.insert(ids.end(), answer.tokens.begin(), answer.tokens.end());
  if (ids.back() != 2) ids.push_back(2);  // the answer was cut; the template ends it
  const size_t held = ids.size();
  ids.insert(ids.end(), turn.begin(), turn.end());
  const Completion next = client.Complete(Greedy(ids, 7));
  EXPECT_EQ(second.at("output").at(0).at("content").at(0).at("text"), next.text);
  EXPECT_EQ(second.at("usage").at("input_tokens"), ids.size());
  // The last token of a session is input of the next step.
  EXPECT_EQ(second.at("usage").at("input_tokens_details").at("cached_tokens"), held - 1);

  // The instructions may be sent with each turn, as openai-agents does; they are in the session.
  json same = second_body;
  same["instructions"] = "Be kind";
  same["include"] = {"reasoning.encrypted_content"};
  const json repeated = Ok("/v1/responses", same);
  EXPECT_EQ(repeated.at("output").at(0).at("content"), second.at("output").at(0).at("content"));
  EXPECT_EQ(repeated.at("usage"), second.at("usage"));
  EXPECT_EQ(repeated.at("instructions"), "Be kind");
  same["previous_response_id"] = second.at("id");  // which was asked for without them
  const json third = Ok("/v1/responses", same);
  same["instructions"] = "Be brief";
  const HttpAnswer others = Post("/v1/responses", same);
  EXPECT_EQ(others.status, 400);
  EXPECT_EQ(json::parse(others.body).at("error").at("param"), "instructions") << others.body;
  EXPECT_NE(others.body.find("send the whole conversation"), std::string::npos) << others.body;
  for (const json& response : {repeated, third}) {
    const std::string path = StrCat("/v1/responses/", response.at("id").get<std::string>());
    EXPECT_EQ(Http(server_->http_address(), path, "", {}, "DELETE").status, 200);
  }

  // A response can be continued again, as a stream and without a session of its own.
  json again = second_body;
  again["store"] = false;
  again["stream"] = true;
  const std::vector<Event> events = Events(Post("/v1/responses", again).body);
  std::string text;
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].name, events[i].data.at("type"));
    EXPECT_EQ(events[i].data.at("sequence_number"), i);
    if (events[i].name == "response.output_text.delta") text += events[i].data.at("delta");
  }
  EXPECT_EQ(text, next.text);
  EXPECT_EQ(events.front().name, "response.created");
  EXPECT_EQ(events.back().data.at("response").at("usage"), second.at("usage"));
  EXPECT_TRUE(ComesToSessions(before + 2));

  for (const json& response : {first, second}) {
    const std::string path = StrCat("/v1/responses/", response.at("id").get<std::string>());
    EXPECT_EQ(Http(server_->http_address(), path, "", {}, "DELETE").status, 200);
    EXPECT_EQ(Http(server_->http_address(), path, "", {}, "DELETE").status, 404);
  }
  EXPECT_EQ(Post("/v1/responses", second_body).status, 404);
  EXPECT_EQ(Sessions(), before);
}

// The texts of stored responses, for their tenant alone.
TEST_F(Chat, StoredResponsesAreReturnedToTheirTenant) {
  const auto get = [](const json& response, const std::string& more = "",
                      const HttpHeaders& headers = {}) {
    const std::string id = response.at("id");
    return Http(server_->http_address(), StrCat("/v1/responses/", id, more), "", headers);
  };
  const auto post = [](const json& body, const HttpHeaders& headers) {
    const HttpAnswer answer = Http(server_->http_address(), "/v1/responses", body.dump(), headers);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body);
  };
  const HttpHeaders acme = {{"X-Tenant-Id", "acme"}};
  const json first = post(GreedyBody({{"input", "It was late"}}, 5, "max_output_tokens"), acme);
  const json second = post(GreedyBody({{"input", {{{"role", "user"}, {"content", "Why?"}}}},
                                       {"previous_response_id", first.at("id")}},
                                      5, "max_output_tokens"),
                           acme);
  EXPECT_EQ(json::parse(get(first, "", acme).body), first);
  EXPECT_EQ(json::parse(get(second, "", acme).body), second);
  // A stream is kept as its last event has it.
  json streamed = GreedyBody({{"input", "It was late"}, {"stream", true}}, 5, "max_output_tokens");
  const json last = Events(Post("/v1/responses", streamed).body).back().data.at("response");
  EXPECT_EQ(json::parse(get(last).body), last);

  const json items = json::parse(get(second, "/input_items?order=asc", acme).body);
  ASSERT_EQ(items.at("data").size(), 3u) << items;
  EXPECT_EQ(items.at("data")[0].at("content")[0].at("text"), "It was late");
  EXPECT_EQ(items.at("data")[1], first.at("output")[0]);
  EXPECT_EQ(items.at("data")[2].at("content")[0].at("text"), "Why?");
  EXPECT_FALSE(items.at("has_more").get<bool>());
  const json page = json::parse(get(second, "/input_items?limit=1", acme).body);
  EXPECT_EQ(page.at("data"), json::array({items.at("data")[2]}));
  EXPECT_TRUE(page.at("has_more").get<bool>());
  EXPECT_EQ(get(second, "/input_items?limit=0", acme).status, 400);
  EXPECT_EQ(get(second, "/input_items?after=nothing", acme).status, 400);
  EXPECT_EQ(get(second, "?stream=true", acme).status, 400);
  EXPECT_EQ(get(second, "?a=%", acme).status, 400);

  // Other tenants do not find them.
  for (const HttpHeaders& other : {HttpHeaders{}, HttpHeaders{{"X-Tenant-Id", "other"}}}) {
    EXPECT_EQ(get(first, "", other).status, 404);
    EXPECT_EQ(get(first, "/input_items", other).status, 404);
    const std::string path = StrCat("/v1/responses/", first.at("id").get<std::string>());
    EXPECT_EQ(Http(server_->http_address(), path, "", other, "DELETE").status, 404);
  }
  EXPECT_EQ(get(first, "", {{"X-Tenant-Id", "a b"}}).status, 400);
  EXPECT_EQ(get(first, "", {{"X-Tenant-Id", "acme"}, {"X-Tenant-Id", "acme"}}).status, 400);
  EXPECT_EQ(get({{"id", "resp_nothing"}}).status, 404);
  EXPECT_EQ(get({{"id", "nothing"}}).status, 404);

  EXPECT_GE(server_->Metric("polysketch_stored_responses"), 3);
  EXPECT_GT(server_->Metric("polysketch_response_memory_bytes"), 0);
  for (const auto& [response, headers] :
       {std::pair{first, acme}, std::pair{second, acme}, std::pair{last, HttpHeaders{}}}) {
    const std::string path = StrCat("/v1/responses/", response.at("id").get<std::string>());
    EXPECT_EQ(Http(server_->http_address(), path, "", headers, "DELETE").status, 200);
    EXPECT_EQ(get(response, "", headers).status, 404);
  }
  // One that is not stored, or has failed, is not kept.
  const json unstored =
      Ok("/v1/responses", GreedyBody({{"input", "It"}, {"store", false}}, 2, "max_output_tokens"));
  EXPECT_EQ(get(unstored).status, 404);
  EXPECT_EQ(Http(server_->http_address(), "/v1/responses/resp_x", "{}").status, 405);
}

// More responses than session memory holds: each is answered, and those that were used last can be
// continued.
TEST_F(Chat, ResponsesInALoopMakeRoomForEachOther) {
  const Server server({.model = folder_->path(),
                       .flags = {"--http-listen", "127.0.0.1:0", "--session-memory", "4MiB"}});
  const auto respond = [&](json body) {
    return Http(server.http_address(), "/v1/responses",
                GreedyBody(std::move(body), 4, "max_output_tokens").dump());
  };
  std::vector<std::string> ids;
  for (int i = 0; i < 60; ++i) {
    const HttpAnswer answer = respond({{"input", StrCat("It was late ", i)}});
    ASSERT_EQ(answer.status, 200) << i << ": " << answer.body;
    ids.push_back(json::parse(answer.body).at("id"));
  }
  EXPECT_LT(server.Metric("polysketch_sessions"), 60) << "some gave way";
  EXPECT_EQ(respond({{"input", "Why?"}, {"previous_response_id", ids.front()}}).status, 404);
  EXPECT_EQ(respond({{"input", "Why?"}, {"previous_response_id", ids.back()}}).status, 200);

  // Sessions that are promises leave no room, and say when there will be some.
  Client client(server.address());
  Status refused;
  for (int i = 0; i < 200 && refused.ok(); ++i) {
    const auto call = client.StartRaw("/polysketch.v1.PolySketch/CreateSession");
    v1::CreateSessionRequest create;
    create.set_ttl_seconds(10);
    call->Write(create.SerializeAsString());
    call->WritesDone();
    std::string bytes;
    v1::Session session;
    ASSERT_TRUE(call->Read(&bytes) && session.ParseFromString(bytes));
    v1::CompleteRequest request = Greedy("It was late", 4);
    request.set_session(session.session());
    refused = client.Complete(request).status;
  }
  EXPECT_EQ(refused.code(), Code::kResourceExhausted) << refused.ToString();
  const HttpAnswer answer = respond({{"input", "It was late"}});
  ASSERT_EQ(answer.status, 429) << answer.body;
  std::smatch seconds;
  ASSERT_TRUE(std::regex_search(answer.head, seconds, std::regex("\r\nRetry-After: ([0-9]+)\r\n")))
      << answer.head;
  EXPECT_LE(std::stoi(seconds[1]), 12);
  std::this_thread::sleep_for(std::chrono::seconds(std::stoi(seconds[1])));
  EXPECT_EQ(respond({{"input", "It was late"}}).status, 200);
}

TEST_F(Chat, AFailedTurnLeavesNoSession) {
  const int before = Sessions();
  json body = GreedyBody({{"input", "It was late"}, {"logit_bias", {{"999999", 1}}}}, 4,
                         "max_output_tokens");
  EXPECT_EQ(Post("/v1/responses", body).status, 400);
  EXPECT_TRUE(ComesToSessions(before));
}

TEST_F(Chat, AClientThatLeavesATurnLeavesNoSession) {
  const int before = Sessions();
  const json body = {{"input", "It was late"},
                     {"stream", true},
                     {"max_output_tokens", 1 << 20},
                     {"ignore_eos", true}};
  {
    const std::string command =
        StrCat("exec curl -sS -H 'Content-Type: application/json' -d '", body.dump(), "' http://",
               server_->http_address(), "/v1/responses");
    Process client({.arguments = {"/bin/sh", "-c", command}});
    EXPECT_TRUE(server_->ComesToRun(1)) << client.StandardError();
    EXPECT_EQ(Sessions(), before + 1);
  }
  EXPECT_TRUE(server_->BecomesIdle());
  EXPECT_TRUE(ComesToSessions(before));
}

TEST_F(Chat, BadRequestsHaveOpenAisShape) {
  const auto expect = [&](const std::string& path, const json& body, const std::string& words,
                          const json& param) {
    const HttpAnswer answer = Post(path, body);
    EXPECT_EQ(answer.status, 400) << body;
    const json error = json::parse(answer.body).at("error");
    EXPECT_NE(error.at("message").get<std::string>().find(words), std::string::npos) << error;
    EXPECT_EQ(error.at("param"), param) << error;
  };
  const std::string chat = "/v1/chat/completions", responses = "/v1/responses";
  expect(chat, json::object(), "expected an array of messages, found none", "messages");
  expect(chat, {{"messages", json::array()}}, "found an empty array", "messages");
  expect(chat, {{"messages", {{{"role", "king"}, {"content", "x"}}}}}, "found \"king\"",
         "messages[0].role");
  expect(chat, {{"messages", {{{"role", "user"}}}}}, "found none", "messages[0].content");
  expect(chat, {{"messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}}},
         "reads text only", "messages[0].content[0].type");
  const auto with = [](const std::string& name, const json& value) {
    json body = {{"messages", Messages("x")}};
    body[name] = value;
    return body;
  };
  expect(chat, with("tools", json::parse(R"([{"type": "function"}])")),
         "expected an object, found none", "tools[0].function");
  expect(chat, with("functions", {{{"name", "f"}}}), "is `tools`", "functions");
  expect(chat, with("tools", {{"type", "function"}}), "expected an array, found an object",
         "tools");
  for (const json& wrong : {json::array({1}), json("x"), json(1), json(true)}) {
    json kwargs = with("chat_template_kwargs", wrong);
    kwargs["reasoning_effort"] = "low";
    kwargs["documents"] = json::array({json::object()});
    expect(chat, kwargs, "expected an object", "chat_template_kwargs");
    expect(responses,
           {{"input", "x"}, {"chat_template_kwargs", wrong}, {"reasoning", {{"effort", "low"}}}},
           "expected an object", "chat_template_kwargs");
  }
  expect(chat, with("tool_choice", "required"), "expected tools beside it", "tool_choice");
  expect(chat, with("response_format", {{"type", "xml"}}), "found \"xml\"", "response_format.type");
  expect(chat, with("top_logprobs", 2), "\"logprobs\": true", "top_logprobs");
  expect(chat, with("temprature", 2), "unknown", "temprature");
  // What the call refuses is named as the request names it.
  for (const char* const name : {"max_completion_tokens", "max_tokens", "n_predict"})
    expect(chat, with(name, 1'000'000'000), "found 1000000000", name);
  for (const char* const name : {"repeat_penalty", "repetition_penalty"})
    expect(chat, with(name, 1000), "found 1000", name);
  expect(chat, with("cache_salt", std::string(257, 'a')), "found 257", "cache_salt");
  expect(chat, with("stop", json(std::vector<std::string>(17, "a"))), "found 1", "stop");
  expect(responses, {{"input", "x"}, {"max_output_tokens", 1'000'000'000}}, "found 1000000000",
         "max_output_tokens");
  expect(responses, {{"input", {{{"type", "function_call_output"}, {"output", 5}}}}},
         "found an integer", "input[0].output");
  expect(chat, with("max_tokens", json::parse("99999999999999999999")),
         "found a number of more than 64 bits", "max_tokens");
  expect(chat, with("guided_choice", json::array()), "expected 1 to", "guided_choice");
  expect(chat, with("guided_regex", "("), "expected", "guided_regex");
  expect(chat,
         with("response_format",
              {{"type", "json_schema"}, {"json_schema", {{"schema", {{"type", "objectt"}}}}}}),
         "/type: expected", "response_format.json_schema.schema");
  json both = with("continue_final_message", true);
  both["add_generation_prompt"] = true;
  expect(chat, both, "\"add_generation_prompt\": false", "continue_final_message");
  expect(responses, json::object(), "expected a string or an array", "input");
  expect(responses, {{"input", {{{"type", "function_call_output"}}}}},
         "expected a string, found none", "input[0].output");
  expect(responses, {{"input", {{{"type", "reasoning"}, {"content", "x"}}}}},
         "expected an array, found a string", "input[0].content");
  expect(responses, {{"input", {{{"type", "web_search_call"}}}}}, "expected message",
         "input[0].type");
  expect(responses, {{"input", "x"}, {"previous_response_id", "resp_1"}, {"instructions", "y"}},
         "expected those of the conversation", "instructions");
  expect(responses, {{"input", "x"}, {"include", {"message.output_text.logprobs"}}},
         "found \"message.output_text.logprobs\"", "include");
  expect(responses, {{"input", "x"}, {"background", true}}, "expected none", "background");
  expect(responses, {{"input", "x"}, {"text", {{"format", {{"type", "json_schema"}}}}}},
         "expected a JSON Schema, found none", "text.format.schema");
  EXPECT_EQ(Post(responses, {{"input", "x"}, {"previous_response_id", "resp_1"}}).status, 404);
  EXPECT_EQ(Post(responses, {{"input", "x"}, {"previous_response_id", "x"}}).status, 404);
  EXPECT_EQ(Http(server_->http_address(), "/v1/responses/resp_1").status, 404);
}

class ChatWithTools : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<ModelFolder>(kToolTemplate);
    server_ = std::make_unique<Server>(
        ServerOptions{.model = folder_->path(), .flags = {"--http-listen", "127.0.0.1:0"}});
  }
  static void TearDownTestSuite() {
    server_.reset();
    folder_.reset();
  }
  static HttpAnswer Post(const json& body) {
    return Http(server_->http_address(), "/v1/chat/completions", body.dump());
  }
  static json Body(const json& choice, int seed) {
    return {{"messages", Messages("Weather?")},
            {"tools", Tools()},
            {"tool_choice", choice},
            {"seed", seed},
            {"max_tokens", 300}};
  }
  static void CheckCall(const json& call) {
    EXPECT_EQ(call.at("type"), "function");
    EXPECT_TRUE(call.at("id").get<std::string>().starts_with("call_")) << call;
    EXPECT_EQ(call.at("function").at("name"), "get_weather");
    const json arguments = json::parse(call.at("function").at("arguments").get<std::string>());
    EXPECT_TRUE(arguments.at("city") == "Paris" || arguments.at("city") == "Rome") << arguments;
    EXPECT_TRUE(arguments.at("at") >= 0 && arguments.at("at") <= 20) << arguments;
    EXPECT_EQ(arguments.size(), 2u);
  }
  static inline std::unique_ptr<ModelFolder> folder_;
  static inline std::unique_ptr<Server> server_;
};

const json kNamed = {{"type", "function"}, {"function", {{"name", "get_weather"}}}};

TEST_F(ChatWithTools, CallsThatMustBeAreValid) {
  for (int seed = 0; seed < 5; ++seed) {
    for (const json& choice : {json("required"), kNamed}) {
      json body = Body(choice, seed);
      if (choice == "required") body["parallel_tool_calls"] = false;
      const HttpAnswer answer = Post(body);
      ASSERT_EQ(answer.status, 200) << answer.body;
      const json one = json::parse(answer.body).at("choices").at(0);
      EXPECT_EQ(one.at("finish_reason"), "tool_calls");
      EXPECT_EQ(one.at("message").at("content"), nullptr);
      ASSERT_EQ(one.at("message").at("tool_calls").size(), 1u);
      CheckCall(one.at("message").at("tool_calls").at(0));
    }
  }
}

TEST_F(ChatWithTools, AStreamHasThePartsOfAWholeAnswer) {
  json body = Body(kNamed, 3);
  const json whole = json::parse(Post(body).body).at("choices").at(0).at("message");
  body["stream"] = true;
  std::string arguments, reason;
  json call;
  size_t parts = 0;
  for (const Event& event : Events(Post(body).body)) {
    const json& choice = event.data.at("choices").at(0);
    EXPECT_EQ(choice.at("delta").value("content", ""), "");
    if (!choice.at("finish_reason").is_null()) reason = choice.at("finish_reason");
    for (const json& part : choice.at("delta").value("tool_calls", json::array())) {
      EXPECT_EQ(part.at("index"), 0);
      EXPECT_EQ(part.contains("id"), parts++ == 0);
      if (part.contains("id")) call = part;
      arguments += part.at("function").at("arguments").get<std::string>();
    }
  }
  EXPECT_EQ(reason, "tool_calls");
  EXPECT_GE(parts, 2u);
  EXPECT_EQ(arguments, whole.at("tool_calls").at(0).at("function").at("arguments"));
  call["function"]["arguments"] = arguments;
  CheckCall(call);
}

// The same over /v1/responses: items of calls, their results as input, and the conversation in the
// state.
TEST_F(ChatWithTools, Responses) {
  json tool = Tools().at(0).at("function");
  tool["type"] = "function";
  json body = {{"input", "Weather?"},
               {"tools", json::array({tool})},
               {"tool_choice", {{"type", "function"}, {"name", "get_weather"}}},
               {"seed", 3},
               {"max_output_tokens", 300}};
  const auto post = [&] { return Http(server_->http_address(), "/v1/responses", body.dump()); };
  const HttpAnswer answer = post();
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json whole = json::parse(answer.body);
  EXPECT_EQ(whole.at("status"), "completed");
  EXPECT_EQ(whole.at("tools"), json::array({tool}));
  ASSERT_EQ(whole.at("output").size(), 1u) << whole;
  const json call = whole.at("output").at(0);
  EXPECT_EQ(call.at("type"), "function_call");
  EXPECT_EQ(call.at("status"), "completed");
  CheckCall({{"type", "function"},
             {"id", call.at("call_id")},
             {"function", {{"name", call.at("name")}, {"arguments", call.at("arguments")}}}});

  body["stream"] = true;
  std::vector<std::string> names;
  std::string arguments;
  json done, last;
  for (const Event& event : Events(post().body)) {
    if (names.empty() || names.back() != event.name) names.push_back(event.name);
    if (event.name == "response.function_call_arguments.delta")
      arguments += event.data.at("delta").get<std::string>();
    if (event.name == "response.output_item.done") done = event.data.at("item");
    last = event.data;
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{
                "response.created", "response.in_progress", "response.output_item.added",
                "response.function_call_arguments.delta", "response.function_call_arguments.done",
                "response.output_item.done", "response.completed"}));
  EXPECT_EQ(arguments, call.at("arguments"));
  EXPECT_EQ(done.at("arguments"), arguments);
  EXPECT_EQ(last.at("response").at("output"), json::array({done}));

  // The result, once in the whole conversation, once after the state of the response.
  body.erase("stream");
  body["tool_choice"] = "none";
  body["max_output_tokens"] = 8;
  const json result = {
      {"type", "function_call_output"}, {"call_id", call.at("call_id")}, {"output", "sunny"}};
  body["input"] = json::array({Messages("Weather?").at(0), call, result});
  const HttpAnswer resent = post();
  ASSERT_EQ(resent.status, 200) << resent.body;
  EXPECT_EQ(json::parse(resent.body).at("output").at(0).at("type"), "message");
  body["input"] = json::array({result});
  body["previous_response_id"] = whole.at("id");
  const HttpAnswer continued = post();
  ASSERT_EQ(continued.status, 200) << continued.body;
  EXPECT_GT(json::parse(continued.body)
                .at("usage")
                .at("input_tokens_details")
                .at("cached_tokens")
                .get<int>(),
            0);
  // Other tools than those that the state holds.
  body["tools"][0]["name"] = "other";
  const HttpAnswer other = post();
  EXPECT_EQ(other.status, 400);
  EXPECT_NE(other.body.find("tools and instructions: expected those"), std::string::npos)
      << other.body;
}

// A turn after the result of a tool, and a model that calls nothing.
TEST_F(ChatWithTools, TheConversationGoesOn) {
  json body = Body("auto", 1);
  body["max_tokens"] = 8;
  body["messages"] = json::parse(R"([{"role": "user", "content": "Weather?"},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": "function",
        "function": {"name": "get_weather", "arguments": "{\"city\": \"Rome\", \"at\": 5}"}}]},
      {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}])");
  const HttpAnswer answer = Post(body);
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json choice = json::parse(answer.body).at("choices").at(0);
  EXPECT_TRUE(choice.at("message").at("content").is_string()) << choice;
  EXPECT_FALSE(choice.at("message").contains("tool_calls"));
  // The model reads what the template makes of the calls.
  body["messages"][1]["tool_calls"][0]["function"]["arguments"] =
      "{\"city\": \"Rome\", \"at\": 15, \"more\": [1, 2]}";
  EXPECT_GT(json::parse(Post(body).body).at("usage").at("prompt_tokens"),
            json::parse(answer.body).at("usage").at("prompt_tokens"));
}

TEST(ChatWithoutTemplate, SaysSo) {
  Server server({.flags = {"--http-listen", "127.0.0.1:0"}});
  for (const auto& [path, body] :
       std::map<std::string, json>{{"/v1/chat/completions", {{"messages", Messages("x")}}},
                                   {"/v1/responses", {{"input", "x"}}}}) {
    const HttpAnswer answer = Http(server.http_address(), path, body.dump());
    EXPECT_EQ(answer.status, 400);
    EXPECT_NE(answer.body.find("expected a model with a chat template, found none"),
              std::string::npos)
        << answer.body;
  }
}

TEST(ChatWithABrokenTemplate, CompletionsAreServed) {
  const ModelFolder folder("{{ messages }}\n{% include 'x' %}");
  Server server({.model = folder.path(), .flags = {"--http-listen", "127.0.0.1:0"}});
  const HttpAnswer answer = Http(server.http_address(), "/v1/chat/completions",
                                 json({{"messages", Messages("x")}}).dump());
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find("chat_template.jinja: line 2: expected"), std::string::npos)
      << answer.body;
  EXPECT_EQ(Http(server.http_address(), "/v1/completions",
                 json({{"prompt", "x"}, {"max_tokens", 1}}).dump())
                .status,
            200);
}

// The stacks of the server's threads are smaller than that of a unit test.
TEST(ChatAtTheDeepestNesting, IsAnswered) {
  const ModelFolder folder(
      "{% macro f(n) %}{% if n > 0 %}{% for i in [1] %}{{ f(n - 1) | trim | upper }}{% endfor %}"
      "{% endif %}{% endmacro %}{% if messages[0].content == 'deep' %}{{ f(240) }}{% endif %}" +
      StrCat("{{ ", std::string(95, '('), "1", std::string(95, ')'), " }}") +
      "{% for m in messages %}{{ m.content }}</s>{% endfor %}");
  Server server({.model = folder.path(), .flags = {"--http-listen", "127.0.0.1:0"}});
  const auto chat = [&](const std::string& content) {
    return Http(server.http_address(), "/v1/chat/completions",
                json({{"messages", Messages(content)}, {"max_tokens", 1}}).dump());
  };
  EXPECT_EQ(chat("x").status, 200);
  const HttpAnswer deep = chat("deep");
  EXPECT_EQ(deep.status, 400);
  EXPECT_NE(deep.body.find("expected nesting of at most"), std::string::npos) << deep.body;
  EXPECT_EQ(chat("x").status, 200);
}

// models/demo has no piece <|im_end|>: output would not stop there, and a message could end a turn.
TEST(ChatWithoutAControlPiece, IsRefusedUnlessTheTemplateIsNamed) {
  const std::string text =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
  const ModelFolder folder(text);
  const json body = {{"messages", Messages("x")}, {"max_tokens", 1}};
  {
    Server server({.model = folder.path(), .flags = {"--http-listen", "127.0.0.1:0"}});
    const HttpAnswer answer = Http(server.http_address(), "/v1/chat/completions", body.dump());
    EXPECT_EQ(answer.status, 400);
    EXPECT_NE(
        answer.body.find("expected a control piece of the vocabulary at the end of an answer"),
        std::string::npos)
        << answer.body;
    EXPECT_TRUE(server.Logs("WARNING chat_template reason="));
  }
  Server server({.flags = {"--http-listen", "127.0.0.1:0", "--chat-template",
                           folder.path() + "/chat_template.jinja"}});
  EXPECT_EQ(Http(server.http_address(), "/v1/chat/completions", body.dump()).status, 200);
  EXPECT_TRUE(server.Logs("expected a control piece of the vocabulary"));
}

}  // namespace
}  // namespace polysketch::e2e
