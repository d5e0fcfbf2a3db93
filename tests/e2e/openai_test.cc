// The OpenAI API over plain sockets; tests/clients/openai_test.py runs the real client.
#include <signal.h>

#include <future>
#include <nlohmann/json.hpp>
#include <sstream>

#include "gtest/gtest.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"

namespace polysketch::e2e {
namespace {

using nlohmann::json;

constexpr char kPrompt[] = "It was late in the afternoon";

json Request(int max_tokens) {
  return {
      {"prompt", kPrompt}, {"max_tokens", max_tokens}, {"temperature", 0}, {"ignore_eos", true}};
}

// The events of a stream, without the closing [DONE], which must be there.
std::vector<json> Events(const std::string& body) {
  std::vector<json> events;
  std::istringstream lines(body);
  bool done = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    EXPECT_TRUE(line.starts_with("data: ") && !done) << line;
    done = line == "data: [DONE]";
    if (!done) events.push_back(json::parse(line.substr(6)));
  }
  EXPECT_TRUE(done) << body;
  return events;
}

class OpenAi : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = std::make_unique<Server>(ServerOptions{.flags = {"--http-listen", "127.0.0.1:0"}});
  }
  static void TearDownTestSuite() { server_.reset(); }
  static HttpAnswer Post(const std::string& path, const json& body) {
    return Http(server_->http_address(), path, body.dump());
  }
  static json Complete(const json& body) {
    const HttpAnswer answer = Post("/v1/completions", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body);
  }
  static inline std::unique_ptr<Server> server_;
};

TEST_F(OpenAi, CompletionsEqualThoseOfGrpc) {
  Client client(server_->address());
  v1::CompleteRequest request = Greedy(kPrompt, 40);
  request.set_logprobs(2);
  request.set_echo(true);
  request.set_ignore_eos(true);
  const Completion expected = client.Complete(request);
  ASSERT_TRUE(expected.status.ok()) << expected.status.ToString();

  json body = Request(40);
  body["logprobs"] = 2;
  body["echo"] = true;
  const json answer = Complete(body);
  const json& choice = answer.at("choices").at(0);
  EXPECT_EQ(choice.at("text"), expected.text);
  EXPECT_EQ(choice.at("finish_reason"), "length");
  EXPECT_EQ(answer.at("usage").at("prompt_tokens"), expected.finish.usage().prompt_tokens());
  EXPECT_EQ(answer.at("usage").at("completion_tokens"), 40);
  const json& logprobs = choice.at("logprobs").at("token_logprobs");
  ASSERT_EQ(logprobs.size(), expected.details.size());
  EXPECT_TRUE(logprobs.at(0).is_null());
  for (size_t i = 1; i < logprobs.size(); ++i) {
    EXPECT_EQ(logprobs[i].get<float>(), expected.details[i].logprob());
    EXPECT_GE(choice.at("logprobs").at("top_logprobs").at(i).size(), 2u);
  }
  // The text at the offset of each token is the text of the token.
  const json& tokens = choice.at("logprobs").at("tokens");
  for (size_t i = 2; i < tokens.size(); ++i) {
    const size_t offset = choice.at("logprobs").at("text_offset").at(i);
    const std::string token = tokens[i];
    if (expected.text.size() == 0) continue;
    EXPECT_EQ(expected.text.substr(offset, token.size()), token) << i;
  }

  json stream = Request(40);
  stream["stream"] = true;
  stream["echo"] = true;
  stream["stream_options"] = {{"include_usage", true}};
  const std::vector<json> events = Events(Post("/v1/completions", stream).body);
  std::string text;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    text += events[i].at("choices").at(0).at("text");
    EXPECT_TRUE(events[i].at("usage").is_null());
  }
  EXPECT_EQ(text, expected.text);
  EXPECT_EQ(events.at(events.size() - 2).at("choices").at(0).at("finish_reason"), "length");
  EXPECT_TRUE(events.back().at("choices").empty());
  EXPECT_EQ(events.back().at("usage").at("completion_tokens"), 40);
}

TEST_F(OpenAi, SeveralPromptsAndChoices) {
  json body = Request(8);
  body["prompt"] = {kPrompt, "The king said"};
  body["n"] = 2;
  const json several = Complete(body);
  ASSERT_EQ(several.at("choices").size(), 4u);
  for (int i = 0; i < 4; ++i) {
    const json& choice = several.at("choices").at(static_cast<size_t>(i));
    EXPECT_EQ(choice.at("index"), i);
    json alone = Request(8);
    alone["prompt"] = body["prompt"][static_cast<size_t>(i / 2)];
    EXPECT_EQ(choice.at("text"), Complete(alone).at("choices").at(0).at("text"));
  }
  EXPECT_EQ(several.at("usage").at("completion_tokens"), 32);
  body["stream"] = true;
  std::map<int, std::string> texts;
  for (const json& event : Events(Post("/v1/completions", body).body)) {
    const json& choice = event.at("choices").at(0);
    texts[choice.at("index").get<int>()] += choice.at("text").get<std::string>();
  }
  for (const json& choice : several.at("choices"))
    EXPECT_EQ(texts[choice.at("index").get<int>()], choice.at("text"));
}

TEST_F(OpenAi, TokensAndModels) {
  const json tokens = json::parse(Post("/tokenize", {{"prompt", kPrompt}}).body).at("tokens");
  EXPECT_EQ(tokens.at(0), 1);
  EXPECT_EQ(json::parse(Post("/detokenize", {{"tokens", tokens}}).body).at("prompt"), kPrompt);
  EXPECT_EQ(json::parse(Post("/tokenize", {{"prompt", "</s>"}, {"add_special_tokens", false}}).body)
                .at("tokens"),
            json({2}));
  EXPECT_GT(json::parse(Post("/tokenize", {{"prompt", "</s>"}, {"parse_special", false}}).body)
                .at("count"),
            2);
  const json with_pieces =
      json::parse(Post("/tokenize", {{"prompt", "a</s>"}, {"return_token_strs", true}}).body);
  EXPECT_EQ(with_pieces.at("token_strs").back(), "</s>");
  EXPECT_EQ(with_pieces.at("max_model_len"), 16777216);
  json by_ids = Request(8);
  by_ids["prompt"] = tokens;
  EXPECT_EQ(Complete(by_ids).at("choices"), Complete(Request(8)).at("choices"));
  const json models = json::parse(HttpGet(server_->http_address(), "/v1/models"));
  EXPECT_EQ(models.at("data").at(0).at("id"), "demo");
  EXPECT_EQ(json::parse(HttpGet(server_->http_address(), "/v1/models/demo")),
            models.at("data").at(0));
  EXPECT_EQ(json::parse(HttpGet(server_->http_address(), "/tokenizer_info")).at("eos_token"),
            "</s>");
  EXPECT_EQ(Http(server_->http_address(), "/health").status, 200);
}

// They have the checks, the metrics and the log of the RPCs.
TEST_F(OpenAi, TextPathsAreRpcs) {
  const auto calls = [](std::string_view method, std::string_view code) {
    return server_->Metric(
        StrCat("polysketch_rpcs_total{code=\"", code, "\",rpc=\"", method, "\"}"));
  };
  const double tokenized = calls("Tokenize", "OK");
  const double refused = calls("Detokenize", "INVALID_ARGUMENT");
  EXPECT_EQ(Post("/tokenize", {{"prompt", std::string(100000, 'x')}}).status, 200);
  EXPECT_EQ(Post("/detokenize", {{"tokens", {4096}}}).status, 400);
  EXPECT_EQ(calls("Tokenize", "OK"), tokenized + 1);
  EXPECT_EQ(calls("Detokenize", "INVALID_ARGUMENT"), refused + 1);
}

// The endings of a context, as an evaluation asks for them: the context is read once.
TEST_F(OpenAi, EndingsOfOneContext) {
  std::vector<int> context(300);
  for (size_t i = 0; i < context.size(); ++i) context[i] = static_cast<int>(3 + i * 37 % 4000);
  json body = {{"max_tokens", 0}, {"echo", true}, {"logprobs", 1}};
  for (int ending = 0; ending < 4; ++ending) {
    std::vector<int> prompt = context;
    for (int i = 0; i <= 3 * ending; ++i) prompt.push_back(100 + 10 * ending + i);
    body["prompt"] = prompt;
    body.erase("logprobs_from");
    body["cache"] = {{"write", false}};
    const json whole = Complete(body).at("choices").at(0).at("logprobs").at("token_logprobs");
    body["logprobs_from"] = context.size();
    body.erase("cache");
    const json answer = Complete(body);
    const json& logprobs = answer.at("choices").at(0).at("logprobs").at("token_logprobs");
    ASSERT_EQ(logprobs.size(), prompt.size());
    for (size_t i = 0; i < prompt.size(); ++i)
      EXPECT_EQ(logprobs[i], i < context.size() ? json() : whole[i]) << i;
    EXPECT_EQ(answer.at("usage").at("prompt_tokens_details").at("cached_tokens"),
              ending == 0 ? 0 : 299);
  }
}

TEST_F(OpenAi, SessionsCostTheNewTokensOnly) {
  const ProcessResult created =
      RunProcess({.arguments = {Binary("polysketch"), "--server", server_->address(), "session",
                                "create", "--json"}});
  json body = Request(8);
  body["session"] = json::parse(created.standard_output).at("session");
  const json first = Complete(body);
  body["prompt"] = " and";
  const json second = Complete(body);
  EXPECT_EQ(
      second.at("usage").at("prompt_tokens_details").at("cached_tokens"),
      first.at("session").at("tokens").get<int>() - 1);  // the last token is input of the next step
}

TEST_F(OpenAi, BadRequestsHaveOpenAisShape) {
  const auto expect = [&](int status, const std::string& path, const std::string& body,
                          const std::string& words, const json& param) {
    const HttpAnswer answer = Http(server_->http_address(), path, body);
    EXPECT_EQ(answer.status, status) << body.substr(0, 100);
    const json error = json::parse(answer.body).at("error");
    EXPECT_NE(error.at("message").get<std::string>().find(words), std::string::npos) << error;
    EXPECT_EQ(error.at("param"), param) << error;
    EXPECT_TRUE(error.at("type").is_string() && error.contains("code"));
    if (status == 400) {
      EXPECT_EQ(error.at("code"), "INVALID_ARGUMENT") << error;
    }
  };
  const std::string path = "/v1/completions";
  expect(400, path, "{", "expected JSON", nullptr);
  expect(400, path, R"({"prompt": "x", "top_p": 2})", "found 2", "top_p");
  expect(400, path, R"({"prompt": "x", "frob": 2})", "unknown", "frob");
  expect(400, path, R"({"prompt": "x", "logprobs_from": 2})", "with echo", "logprobs_from");
  expect(404, path, R"({"prompt": "x", "model": "gpt"})", "found \"gpt\"", "model");
  expect(404, path, R"({"session": "00"})", "no session 00", nullptr);
  expect(400, "/tokenize", R"({"prompt": 5})", "expected a string", "prompt");
  expect(400, "/detokenize", R"({"tokens": [-1]})", "expected an id", "tokens[0]");
  EXPECT_EQ(Http(server_->http_address(), path).status, 405);
  EXPECT_EQ(Http(server_->http_address(), "/v1/models/other").status, 404);
  EXPECT_EQ(Http(server_->http_address(), path, std::string(65 << 20, 'x')).status, 413);
}

TEST(OpenAiOrigins, PagesOfAListedOriginMayCall) {
  const Server server(
      {.flags = {"--http-listen", "127.0.0.1:0", "--http-origins", "https://app.example"}});
  const std::string body = R"({"prompt": "It", "max_tokens": 1})";
  const auto preflight = [&server](const std::string& origin) {
    return Http(server.http_address(), "/v1/completions", "",
                {{"Origin", origin}, {"Access-Control-Request-Method", "POST"}}, "OPTIONS");
  };
  const std::string allowed = "Access-Control-Allow-Origin: https://app.example\r\n";
  const HttpAnswer asked = preflight("https://app.example");
  EXPECT_EQ(asked.status, 200);
  EXPECT_NE(asked.head.find(allowed), std::string::npos) << asked.head;
  EXPECT_NE(asked.head.find("Access-Control-Allow-Headers: Authorization"), std::string::npos);
  const HttpAnswer called =
      Http(server.http_address(), "/v1/completions", body, {{"Origin", "https://app.example"}});
  EXPECT_EQ(called.status, 200);
  EXPECT_NE(called.head.find(allowed), std::string::npos) << called.head;

  const HttpAnswer refused = preflight("https://evil.example");
  EXPECT_EQ(refused.status, 405);
  EXPECT_EQ(refused.head.find("Access-Control"), std::string::npos) << refused.head;
}

TEST(OpenAiWarnings, AnIgnoredParameterIsLoggedOnce) {
  Server server({.flags = {"--http-listen", "127.0.0.1:0"}});
  for (int i = 0; i < 3; ++i) {
    const HttpAnswer answer =
        Http(server.http_address(), "/v1/completions",
             R"({"prompt": "It", "max_tokens": 1, "user": "me", "service_tier": null})");
    EXPECT_EQ(answer.status, 200) << answer.body;
  }
  const auto count = [&server](std::string_view text) {
    const std::string log = server.process().StandardError();
    size_t found = 0;
    for (size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) ++found;
    return found;
  };
  EXPECT_TRUE(WaitUntil([&] { return count("parameter_ignored parameter=user") > 0; }));
  EXPECT_EQ(count("parameter_ignored"), 1u);
}

TEST_F(OpenAi, AClientThatLeavesFreesItsSlot) {
  json endless = Request(1 << 20);
  for (const bool stream : {false, true}) {
    endless["stream"] = stream;
    {
      const std::string command =
          StrCat("exec curl -sS -H 'Content-Type: application/json' -d '", endless.dump(),
                 "' http://", server_->http_address(), "/v1/completions");
      Process client({.arguments = {"/bin/sh", "-c", command}});
      EXPECT_TRUE(server_->ComesToRun(1)) << client.StandardError();
    }
    EXPECT_TRUE(server_->BecomesIdle());
  }
}

TEST(OpenAiDrain, AStreamThatIsCutEndsWithAnError) {
  Server server({.flags = {"--http-listen", "127.0.0.1:0", "--drain-timeout", "300ms"}});
  json endless = Request(1 << 20);
  endless["stream"] = true;
  auto answer = std::async(std::launch::async, [&] {
    return Http(server.http_address(), "/v1/completions", endless.dump());
  });
  ASSERT_TRUE(server.ComesToRun(1));
  server.process().Signal(SIGTERM);
  const std::vector<json> events = Events(answer.get().body);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().at("error").at("type"), "server_error") << events.back();
  EXPECT_EQ(server.process().Wait(), 0) << server.process().StandardError();
}

}  // namespace
}  // namespace polysketch::e2e
