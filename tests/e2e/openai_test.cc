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

// Each is counted by its reason, and the log has a line with its id, which the client gets back.
TEST_F(OpenAi, ARefusedRequestIsLoggedAndCounted) {
  struct Case {
    const char* reason;
    int status;
    const char* method;
    const char* path;
    std::string body;
    HttpHeaders headers;
    bool called = false;  // became a call of polysketch.v1, whose line it has
  };
  const std::vector<Case> cases = {
      {"NO_SUCH_PATH", 404, "GET", "/nowhere", "", {}},
      {"NO_SUCH_PATH", 404, "POST", "/v1/embeddings", "{}", {}},
      {"METHOD_NOT_ALLOWED", 405, "GET", "/v1/completions", "", {}},
      {"METHOD_NOT_ALLOWED", 405, "PUT", "/api/sessions/list", "{}", {}},
      {"HOST_REFUSED", 403, "GET", "/v1/models", "", {{"Host", "evil.example"}}},
      {"PERMISSION_DENIED",
       403,
       "POST",
       "/api/sessions/list",
       "{}",
       {{"Origin", "http://evil.example"}}},
      {"MALFORMED_REQUEST", 400, "GET", "/", "", {{"Host", "a"}, {"Host", "b"}}},
      {"UNSUPPORTED_ENCODING", 415, "POST", "/tokenize", "{}", {{"Content-Encoding", "gzip"}}},
      {"EXPECTATION_FAILED", 417, "POST", "/tokenize", "{}", {{"Expect", "x"}}},
      {"BODY_TOO_LARGE", 413, "POST", "/tokenize", std::string(65 << 20, 'x'), {}},
      {"INVALID_ARGUMENT", 400, "POST", "/tokenize", "[", {}},
      {"INVALID_ARGUMENT", 400, "POST", "/v1/completions", R"({"temprature": 1})", {}},
      {"INVALID_ARGUMENT", 400, "POST", "/api/sessions/list", "{\"x\": 1}", {}},
      {"NOT_FOUND", 404, "POST", "/v1/completions", R"({"model": "gpt"})", {}},
      {"NOT_FOUND", 404, "GET", "/v1/models/gpt", "", {}},
      {"INVALID_ARGUMENT", 400, "POST", "/v1/completions", R"({"prompt":"x","top_p":2})", {}},
      {"INVALID_ARGUMENT",
       400,
       "POST",
       "/v1/completions",
       R"({"prompt":"x","max_tokens":2,"min_tokens":9})",
       {},
       true},
      {"NOT_FOUND", 404, "POST", "/v1/completions", R"({"session": "00"})", {}, true},
      {"INVALID_ARGUMENT", 400, "POST", "/detokenize", R"({"tokens": [-1]})", {}, true},
  };
  int next = 0;
  for (const Case& c : cases) {
    const std::string counter =
        StrCat("polysketch_requests_refused_total{reason=\"", c.reason, "\"}");
    const double before = server_->Metric(counter);
    const std::string id = StrCat("refused-", next++);
    HttpHeaders headers = c.headers;
    headers.emplace_back("x-request-id", id);
    const HttpAnswer answer = Http(server_->http_address(), c.path, c.body, headers, c.method);
    EXPECT_EQ(answer.status, c.status) << id << answer.body;
    EXPECT_NE(answer.head.find(StrCat("x-request-id: ", id, "\r\n")), std::string::npos)
        << answer.head;
    EXPECT_TRUE(
        server_->Logs(StrCat(c.called ? " request_done id=" : " request_refused id=", id, " ")))
        << id;
    EXPECT_EQ(server_->Metric(counter), before + 1) << id;
    const std::string log = server_->process().StandardError();
    const std::string line = log.substr(log.find(StrCat("id=", id, " ")));
    EXPECT_NE(line.substr(0, line.find('\n')).find(StrCat(" reason=", c.reason)), std::string::npos)
        << line;
    EXPECT_EQ(line.find(StrCat("id=", id, " "), 1), std::string::npos) << "two lines: " << line;
  }
}

// As guidellm asks for it, and vLLM answers.
TEST_F(OpenAi, UsageSoFar) {
  json body = Request(12);
  body["prompt"] = {kPrompt, "The king said"};
  body["n"] = 2;
  const json whole = Complete(body);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  const std::vector<json> events = Events(Post("/v1/completions", body).body);
  std::map<int, int64_t> generated;
  std::map<int, int64_t> prompts;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json& usage = events[i].at("usage");
    const int index = events[i].at("choices").at(0).at("index");
    EXPECT_GE(usage.at("completion_tokens"), generated[index]) << events[i];
    generated[index] = usage.at("completion_tokens");
    prompts[index] = usage.at("prompt_tokens");
    EXPECT_EQ(usage.at("total_tokens"), generated[index] + prompts[index]);
  }
  EXPECT_EQ(generated, (std::map<int, int64_t>{{0, 12}, {1, 12}, {2, 12}, {3, 12}}));
  EXPECT_EQ(prompts[0], prompts[1]);
  EXPECT_EQ(prompts[0] + prompts[2], whole.at("usage").at("prompt_tokens"));
  EXPECT_EQ(events.back().at("usage"), whole.at("usage"));
  // Without include_usage there is none.
  body["stream_options"] = {{"continuous_usage_stats", true}};
  for (const json& event : Events(Post("/v1/completions", body).body))
    EXPECT_FALSE(event.contains("usage")) << event;
}

// The engine is busy with the prompt for long after the beginning of the stream.
TEST_F(OpenAi, AStreamBeginsBeforeItsPromptIsRead) {
  std::string prompt;
  for (int i = 0; i < 40'000; ++i) prompt += "It was late in the afternoon. ";
  json body = Request(1);
  body["prompt"] = prompt;
  body["stream"] = true;
  const std::string text = body.dump();
  const HttpStream stream(server_->http_address(), "/v1/completions", text);
  const std::string head = stream.ReadUntil("\r\n\r\n");
  EXPECT_TRUE(head.starts_with("HTTP/1.1 200 OK\r\n")) << head;
  EXPECT_NE(head.find("text/event-stream"), std::string::npos) << head;
  // The engine has the request once its prompt is tokens, and reads them for seconds.
  const auto reads = [] {
    return server_->Metric("polysketch_num_requests_running") +
               server_->Metric("polysketch_num_requests_waiting") >
           0;
  };
  EXPECT_TRUE(WaitUntil(reads));
  // What is refused has a status, in the last of several prompts too.
  json refused = Request(1);
  refused["stream"] = true;
  refused["prompt"] = {"It", "was", json::array({1, 1 << 30})};
  EXPECT_EQ(Post("/v1/completions", refused).status, 400);
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
  const json tokenizer = json::parse(HttpGet(server_->http_address(), "/tokenizer_info"));
  EXPECT_EQ(tokenizer.at("eos_token"), "</s>");
  EXPECT_EQ(tokenizer.at("tokenizer_class"), "SentencePiece");
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

// Properties of outputs over many seeds, with drafts and several choices.
TEST_F(OpenAi, RulesOfTokensHold) {
  std::vector<int> allowed;
  for (int id = 2; id < 4096; ++id)
    if (id % 3 != 0) allowed.push_back(id);
  int ended = 0;
  for (int seed = 0; seed < 20; ++seed) {
    json body = {{"prompt", kPrompt},       {"max_tokens", 40},
                 {"min_tokens", 25},        {"seed", seed},
                 {"n", seed % 3 + 1},       {"draft_tokens", seed % 2 * 4},
                 {"stop", {"e", "a"}},      {"bad_words", {"the", "of", " and"}},
                 {"return_token_ids", true}};
    if (seed % 4 == 3) body["allowed_token_ids"] = allowed;
    const json answer = Complete(body);
    ASSERT_EQ(answer.at("choices").size(), static_cast<size_t>(seed % 3 + 1));
    for (const json& choice : answer.at("choices")) {
      const json& ids = choice.at("token_ids");
      const std::string reason = choice.at("finish_reason");
      EXPECT_GT(ids.size() + (reason == "length"), 25u) << choice;
      ended += reason == "stop";
      for (const json& id : ids) EXPECT_TRUE(seed % 4 != 3 || id.get<int>() % 3 != 0) << id;
      const std::string text = StrCat(choice.at("text").get<std::string>(), " ");
      for (const std::string word : {" the ", " of ", " and "})
        EXPECT_EQ(text.find(word), std::string::npos) << text;
    }
  }
  EXPECT_GT(ended, 10);
  // The same words are there without the rule.
  json body = Request(200);
  EXPECT_NE(Complete(body).at("choices").at(0).at("text").get<std::string>().find(" the "),
            std::string::npos);
}

TEST_F(OpenAi, ASaltDividesThePrefixCache) {
  std::vector<int> prompt(400);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int>(5 + i * 41 % 4000);
  const auto cached = [&](const json& salt) {
    json body = Request(2);
    body["prompt"] = prompt;
    body["cache_salt"] = salt;
    return Complete(body).at("usage").at("prompt_tokens_details").at("cached_tokens").get<int>();
  };
  for (const json& salt : {json("one"), json("another"), json()}) {
    EXPECT_EQ(cached(salt), 0) << salt;
    EXPECT_GT(cached(salt), 300) << salt;
  }
}

// Beside those of an echo, whose alternatives are the most likely tokens.
TEST_F(OpenAi, LogProbabilitiesOfThePrompt) {
  json body = Request(4);
  body["n"] = 2;
  body["logprobs"] = 1;
  const json plain = Complete(body);
  body["prompt_logprobs"] = 3;
  body["return_token_ids"] = true;
  const json answer = Complete(body);
  body.erase("prompt_logprobs");
  body["echo"] = true;
  body["logprobs"] = 20;
  const json echo = Complete(body).at("choices").at(0).at("logprobs");
  for (size_t i = 0; i < 2; ++i) {
    const json& choice = answer.at("choices").at(i);
    EXPECT_EQ(choice.at("text"), plain.at("choices").at(i).at("text"));
    EXPECT_EQ(choice.at("logprobs"), plain.at("choices").at(i).at("logprobs"));
    const json& prompt = choice.at("prompt_logprobs");
    const json& ids = choice.at("prompt_token_ids");
    ASSERT_EQ(prompt.size(), ids.size());
    EXPECT_TRUE(prompt.at(0).is_null());
    for (size_t token = 1; token < ids.size(); ++token) {
      const json& own = prompt.at(token).at(std::to_string(ids.at(token).get<int>()));
      EXPECT_EQ(own.at("logprob"), echo.at("token_logprobs").at(token));
      EXPECT_EQ(own.at("decoded_token"), echo.at("tokens").at(token));
      EXPECT_EQ(prompt.at(token).size(), own.at("rank").get<int>() <= 3 ? 3u : 4u);
      // Of the twenty most likely tokens as many as the rank are at least as likely.
      const float logprob = own.at("logprob");
      int rank = 0;
      for (const auto& [text, other] : echo.at("top_logprobs").at(token).items())
        rank += other.get<float>() >= logprob;
      if (own.at("rank").get<int>() <= 20) {
        EXPECT_EQ(own.at("rank"), rank) << token;
      } else {
        EXPECT_GE(rank, 20) << token;
      }
    }
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
  expect(400, path, R"({"prompt": "x", "temprature": 2})", "unknown", "temprature");
  expect(400, path, R"({"prompt": "x", "logprobs_from": 2})", "with echo", "logprobs_from");
  expect(400, path, R"({"prompt": "x", "max_tokens": 2, "min_tokens": 3})", "found 3",
         "min_tokens");
  expect(400, path, R"({"prompt": "x", "bad_words": ["a", ""]})", "found 0", "bad_words[1]");
  expect(400, path, R"({"prompt": "x", "allowed_token_ids": [4096]})", "found 4096",
         "allowed_token_ids[0]");
  expect(400, path, StrCat(R"({"prompt": "x", "cache_salt": ")", std::string(257, 'a'), "\"}"),
         "found 257", "cache_salt");
  expect(400, path, R"({"prompt": "x", "prompt_logprobs": 21})", "found 21", "prompt_logprobs");
  expect(400, path, R"({"prompt": "x", "prompt_logprobs": 1, "stream": true})", "expected none",
         "prompt_logprobs");
  expect(400, path, R"({"prompt": "x", "n_predict": 1000000000})", "found 1000000000", "n_predict");
  expect(400, path, R"({"prompt": [5, 4096]})", "found 4096", "prompt[1]");
  expect(400, path, R"({"prompt": [[5], [5, 6, -1]]})", "found -1", "prompt[1][2]");
  expect(404, path, R"({"prompt": "x", "model": "gpt"})", "found \"gpt\"", "model");
  expect(404, path, R"({"session": "00"})", "no session 00", nullptr);
  expect(400, "/tokenize", R"({"prompt": 5})", "expected a string", "prompt");
  expect(400, "/detokenize", R"({"tokens": [-1]})", "expected an id", "tokens[0]");
  expect(404, "/tokenize", R"({"prompt": "x", "model": "gpt"})", "found \"gpt\"", "model");
  expect(404, "/detokenize", R"({"tokens": [5], "model": "gpt"})", "found \"gpt\"", "model");
  expect(400, "/tokenize", R"({"prompt": "x", "model": 5})", "expected a string", "model");
  EXPECT_EQ(Http(server_->http_address(), path).status, 405);
  EXPECT_EQ(Http(server_->http_address(), "/v1/models/other").status, 404);
  EXPECT_EQ(Http(server_->http_address(), path, std::string(65 << 20, 'x')).status, 413);
}

TEST_F(OpenAi, PathsAndMethodsHaveOpenAisErrors) {
  const auto answer = [](const std::string& method, const std::string& path,
                         const std::string& body = "") {
    return Http(server_->http_address(), path, body, {}, method);
  };
  for (const char* path : {"/v1/nothing", "/v1", "/v1/modelsx", "/api", "/x.js", "/v1/chat"}) {
    for (const char* method : {"GET", "POST", "DELETE"}) {
      const HttpAnswer got = answer(method, path, method[0] == 'P' ? "{}" : "");
      EXPECT_EQ(got.status, 404) << path;
      const json error = json::parse(got.body).at("error");
      EXPECT_EQ(error.at("code"), "NO_SUCH_PATH") << error;
      EXPECT_NE(error.at("message").get<std::string>().find(path), std::string::npos) << error;
      EXPECT_NE(got.head.find("Content-Type: application/json\r\n"), std::string::npos);
    }
  }
  const std::pair<const char*, const char*> allowed[] = {
      {"/v1/completions", "POST"},      {"/v1/chat/completions", "POST"},
      {"/v1/responses", "POST"},        {"/v1/responses/r", "GET, HEAD, DELETE"},
      {"/v1/models", "GET, HEAD"},      {"/tokenize", "POST"},
      {"/v1/models/demo", "GET, HEAD"}, {"/tokenizer_info", "GET, HEAD"},
      {"/detokenize", "POST"},          {"/health", "GET, HEAD"},
      {"/version", "GET, HEAD"},        {"/", "GET, HEAD"},
      {"/api/status", "GET, HEAD"},     {"/api/sessions/list", "POST"},
  };
  for (const auto& [path, methods] : allowed) {
    for (const char* method :
         {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FROB"}) {
      if (std::string_view(methods).find(method) != std::string_view::npos) continue;
      const HttpAnswer got = answer(method, path);
      EXPECT_EQ(got.status, 405) << method << path;
      EXPECT_EQ(json::parse(got.body).at("error").at("code"), "METHOD_NOT_ALLOWED");
      EXPECT_NE(got.head.find(StrCat("Allow: ", methods, "\r\n")), std::string::npos) << got.head;
    }
    if (methods[0] != 'G') continue;
    const HttpAnswer whole = answer("GET", path), head = answer("HEAD", path);
    EXPECT_EQ(head.status, whole.status) << path;
    EXPECT_EQ(head.body, "") << path;
    if (std::string(path) != "/api/status") {  // its numbers move
      EXPECT_NE(head.head.find(StrCat("Content-Length: ", whole.body.size(), "\r\n")),
                std::string::npos)
          << head.head;
    }
  }
  EXPECT_EQ(Http(server_->metrics_address(), "/nowhere").status, 404);
  EXPECT_EQ(Http(server_->metrics_address(), "/metrics/?name=x").status, 200);
  EXPECT_EQ(Http(server_->metrics_address(), "/metrics", "{}").status, 413);  // takes no bodies
  EXPECT_EQ(answer("HEAD", "/nowhere").status, 404);
  EXPECT_EQ(answer("OPTIONS", "*").status, 200);
  EXPECT_NE(answer("OPTIONS", "*").head.find("Allow: GET, HEAD, POST"), std::string::npos);
}

TEST_F(OpenAi, ASlashAtTheEndAndTypesWithParameters) {
  const auto status = [](const char* path, const char* type) {
    return Http(server_->http_address(), path, R"({"prompt": "It", "max_tokens": 1})",
                {{"Content-Type", type}})
        .status;
  };
  EXPECT_EQ(status("/v1/completions/", "application/json"), 200);
  EXPECT_EQ(status("//v1/completions?api-version=1", "application/json"), 200);
  EXPECT_EQ(status("/v1/completions", "application/json ; charset=utf-8"), 200);
  EXPECT_EQ(status("/v1/completions", "Application/JSON; Charset=UTF-8"), 200);
  // As curl -d sends it, and as a form of another page.
  const auto form = [](const char* path, const std::string& body, HttpHeaders headers) {
    headers.emplace_back("Content-Type", "application/x-www-form-urlencoded");
    return Http(server_->http_address(), path, body, headers).status;
  };
  const std::string body = R"({"prompt": "It", "max_tokens": 1})";
  EXPECT_EQ(form("/v1/completions", body, {}), 200);
  EXPECT_EQ(form("/tokenize", R"({"prompt": "It"})", {}), 200);
  EXPECT_EQ(form("/v1/completions", body, {{"Origin", "http://other.example"}}), 400);
  EXPECT_EQ(form("/v1/completions", body, {{"Origin", "null"}}), 400);
  EXPECT_EQ(form("/v1/completions", "prompt=It", {}), 400);
  EXPECT_EQ(form("/api/sessions/list", "{}", {}), 400) << "the page's";
  EXPECT_EQ(Http(server_->http_address(), "/v1/models/demo/").status, 200);
  EXPECT_EQ(Http(server_->http_address(), "http://other.example/v1/models").status, 403);
  EXPECT_EQ(
      Http(server_->http_address(), "http://localhost:1/v1/models", "", {{"Host", "other.example"}})
          .status,
      200);
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
  const char* const headers = "authorization, content-type, x-stainless-lang,x-stainless-os";
  const HttpAnswer reflected = Http(server.http_address(), "/v1/completions", "",
                                    {{"Origin", "https://app.example"},
                                     {"Access-Control-Request-Method", "POST"},
                                     {"Access-Control-Request-Headers", headers}},
                                    "OPTIONS");
  EXPECT_EQ(reflected.status, 200);
  EXPECT_NE(reflected.head.find(StrCat("Access-Control-Allow-Headers: ", headers, "\r\n")),
            std::string::npos)
      << reflected.head;
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
