// Sessions and what comes with them, through the real binaries: the client as a person would use
// it, servers that are killed and replaced, both kinds of stores.
#include <signal.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "gtest/gtest.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"
#include "tests/testing/random_model.h"
#include "tests/testing/redis_proxy.h"
#include "tests/testing/redis_server.h"

namespace polysketch::e2e {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

class Folder {
 public:
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  const fs::path path_ = NewTemporaryFolder();
};

ProcessResult RunClient(const Server& server, std::vector<std::string> arguments,
                        const std::string& input = "") {
  arguments.insert(arguments.begin(), {Binary("polysketch"), "--server", server.address()});
  return RunProcess({.arguments = std::move(arguments), .standard_input = input});
}

Json Ask(const Server& server, std::vector<std::string> arguments, const std::string& input = "") {
  arguments.push_back("--json");
  const ProcessResult result = RunClient(server, std::move(arguments), input);
  EXPECT_EQ(result.exit_status, 0) << result.standard_error;
  return result.exit_status == 0 ? Json::parse(result.standard_output) : Json();
}

// The arguments of a greedy completion of `tokens` tokens.
std::vector<std::string> Complete(int tokens, std::vector<std::string> more) {
  std::vector<std::string> arguments = {"complete",     "--temperature", "0",
                                        "--ignore-eos", "--max-tokens",  std::to_string(tokens)};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

constexpr char kFirst[] = "It was late in the afternoon when";
constexpr char kSecond[] = " and no one had told her that";

// dir:PATH, or a Redis server of the test's own.
class Store {
 public:
  explicit Store(const std::string& kind) {
    if (kind == "dir") {
      url_ = "dir:" + (folder_.path() / "states").string();
      return;
    }
    redis_ = std::make_unique<testing::RedisServer>(folder_.path());
    proxy_ = std::make_unique<testing::RedisProxy>(redis_->port());
    const fs::path password = folder_.path() / "password";
    WriteFile(password, "hidden\n");
    url_ = "redis://worker@127.0.0.1:" + std::to_string(proxy_->port()) +
           "/1?password_file=" + password.string();
    EXPECT_TRUE(WaitUntil([&] { return redis_->Answers(); }));
  }
  std::vector<std::string> flags() const { return {"--state-store", url_}; }
  fs::path folder() const { return folder_.path() / "states"; }
  testing::RedisProxy& proxy() { return *proxy_; }

 private:
  Folder folder_;
  std::unique_ptr<testing::RedisServer> redis_;
  std::unique_ptr<testing::RedisProxy> proxy_;
  std::string url_;
};

TEST(Session, EveryCommand) {
  const Server server;
  const std::string id = Ask(server, {"session", "create"})["session"];
  ASSERT_EQ(id.size(), 32u);
  const Json appended = Ask(server, {"session", "append", id, "--prompt", kFirst});
  const int64_t tokens = appended["tokens"];
  EXPECT_GT(tokens, 5);
  const Json forked = Ask(server, {"session", "fork", id, "--count", "3"});
  EXPECT_EQ(forked["sessions"].size(), 3u);
  EXPECT_EQ(forked["session"], forked["sessions"][0]["session"]);
  const std::string key = Ask(server, {"session", "snapshot", id})["snapshot"];

  // The same text, whole, in a session, in a fork and in a restored one.
  const Json whole = Ask(server, Complete(20, {"--prompt", kFirst}));
  const Json in_session = Ask(server, Complete(20, {"--session", id}));
  EXPECT_EQ(in_session["text"], whole["text"]);
  EXPECT_EQ(in_session["tokens"], whole["tokens"]);
  EXPECT_EQ(in_session["session"]["tokens"], tokens + 20);
  EXPECT_EQ(in_session["usage"]["cached_tokens"], tokens - 1);
  EXPECT_EQ(Ask(server, Complete(20, {"--session", forked["session"]}))["text"], whole["text"]);
  const std::string restored = Ask(server, {"session", "restore", key})["session"];
  EXPECT_EQ(Ask(server, Complete(20, {"--session", restored}))["text"], whole["text"]);

  // It goes on where it was: text joins text.
  const std::string text = std::string(kFirst) + whole["text"].get<std::string>() + kSecond;
  const Json longer = Ask(server, Complete(20, {"--prompt", text}));
  EXPECT_EQ(Ask(server, Complete(20, {"--session", id, "--prompt", kSecond}))["text"],
            longer["text"]);

  const Json list = Ask(server, {"session", "list"});
  EXPECT_EQ(list["sessions"].size(), 5u);
  EXPECT_EQ(list["snapshots"].size(), 1u);
  EXPECT_EQ(RunClient(server, {"session", "delete", id}).exit_status, 0);
  EXPECT_EQ(RunClient(server, {"session", "delete", key}).exit_status, 0);
  const ProcessResult gone = RunClient(server, {"complete", "--session", id});
  EXPECT_EQ(gone.exit_status, 1);
  EXPECT_NE(gone.standard_error.find("NOT_FOUND"), std::string::npos) << gone.standard_error;
  EXPECT_EQ(Ask(server, {"session", "list"})["sessions"].size(), 4u);
}

TEST(Session, PositionsTenantsAndUseAtOnce) {
  const Server server;
  const std::string id = Ask(server, {"session", "create", "--tenant", "acme"})["session"];
  Ask(server, {"session", "append", id, "--tenant", "acme", "--prompt", kFirst,
               "--expected-position", "0"});
  const auto refused = [&](std::vector<std::string> arguments, const char* code) {
    const ProcessResult result = RunClient(server, std::move(arguments));
    EXPECT_EQ(result.exit_status, 1);
    EXPECT_NE(result.standard_error.find(code), std::string::npos) << result.standard_error;
  };
  refused(
      {"session", "append", id, "--tenant", "acme", "--prompt", kFirst, "--expected-position", "0"},
      "FAILED_PRECONDITION");
  refused({"session", "append", id, "--prompt", kFirst}, "NOT_FOUND");
  refused({"session", "fork", id, "--tenant", "other"}, "NOT_FOUND");
  refused({"complete", "--session", id, "--tenant", "other"}, "NOT_FOUND");
  refused({"session", "delete", id, "--tenant", "other"}, "NOT_FOUND");

  Client client(server.address());
  v1::CompleteRequest endless = Greedy("", 1 << 20);
  endless.clear_prompt();
  endless.set_session(id);
  const auto stream = client.StartComplete(endless, {.metadata = {{"x-tenant-id", "acme"}}});
  v1::CompleteResponse response;
  ASSERT_TRUE(stream->Read(&response));
  refused({"complete", "--session", id, "--tenant", "acme"}, "ABORTED");
  stream->Cancel();
  EXPECT_EQ(stream->Finish().code(), Code::kCancelled);
  // Cancelled: the session is as it was.
  EXPECT_TRUE(server.BecomesIdle());
  EXPECT_TRUE(WaitUntil([&] {
    return Ask(server, {"session", "list", "--tenant", "acme"})["sessions"][0]["tokens"] ==
           Ask(server, {"tokenize", "--prompt", kFirst})["tokens"].size();
  }));
}

TEST(Session, StatesThatTheClientKeeps) {
  const Server server;
  const Server other;
  const Folder folder;
  const std::string one = (folder.path() / "one").string();
  const std::string two = (folder.path() / "two").string();
  const Json first = Ask(server, Complete(10, {"--prompt", kFirst, "--state-out", one}));
  const Json second = Ask(other, Complete(10, {"--state-in", one, "--state-out", two}));
  const Json third = Ask(server, Complete(10, {"--state-in", two, "--prompt", kSecond}));
  const Json whole = Ask(server, Complete(20, {"--prompt", kFirst}));
  EXPECT_EQ(first["text"].get<std::string>() + second["text"].get<std::string>(), whole["text"]);
  const std::string text = std::string(kFirst) + whole["text"].get<std::string>() + kSecond;
  EXPECT_EQ(third["text"], Ask(server, Complete(10, {"--prompt", text}))["text"]);

  std::string bytes = ReadFile(one);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  WriteFile(one, bytes);
  const ProcessResult bad = RunClient(server, {"complete", "--state-in", one});
  EXPECT_EQ(bad.exit_status, 1);
  EXPECT_NE(bad.standard_error.find("DATA_LOSS"), std::string::npos) << bad.standard_error;
}

// A prompt that a tenant sent before is not processed again, and the output is the same.
TEST(Session, StoredPrompts) {
  const Server server({.flags = {"--prefix-cache-min-tokens", "100"}});
  std::string text;
  while (text.size() < 3000) text += std::string(kFirst) + kSecond + ". ";
  const auto ask = [&](const std::string& prompt, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = Complete(10, {"--prompt", prompt});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Ask(server, arguments);
  };
  const Json cold = ask(text);
  EXPECT_EQ(cold["usage"]["cached_tokens"], 0);
  EXPECT_EQ(cold["cache_miss"], "CACHE_MISS_NO_PREFIX");
  const Json again = ask(text);
  EXPECT_EQ(again["text"], cold["text"]);
  EXPECT_GT(again["usage"]["cached_tokens"], 100);
  EXPECT_FALSE(again.contains("cache_miss"));
  const Json longer = ask(text + kFirst, {"--logprobs", "3"});
  EXPECT_GT(longer["usage"]["cached_tokens"], 100);
  const Json longer_cold = ask(text + kFirst, {"--logprobs", "3", "--no-cache"});
  EXPECT_EQ(longer["logprobs"], longer_cold["logprobs"]) << "bit for bit";
  EXPECT_EQ(longer_cold["cache_miss"], "CACHE_MISS_DISABLED");
  EXPECT_EQ(ask(text, {"--tenant", "other"})["cache_miss"], "CACHE_MISS_NO_PREFIX");
  EXPECT_EQ(ask("short")["cache_miss"], "CACHE_MISS_TOO_SHORT");
  // A point of the caller's choice, whatever the least length of prompts that are stored by
  // themselves.
  EXPECT_EQ(ask(text.substr(7), {"--cache-point", "30"})["usage"]["cached_tokens"], 0);
  const std::string beginning = text.substr(7, 160);
  EXPECT_EQ(ask(beginning)["usage"]["cached_tokens"], 30);
  // An append says it too: of an empty session it may begin with a stored prompt.
  const auto append = [&](const std::string& id, const std::string& more) {
    return Ask(server, {"session", "append", id, "--prompt", more});
  };
  const std::string id = Ask(server, {"session", "create"})["session"];
  const Json first = append(id, text);
  EXPECT_GT(first["usage"]["cached_tokens"], 100);
  EXPECT_LT(first["usage"]["cached_tokens"], first["usage"]["prompt_tokens"]);
  EXPECT_EQ(first["usage"]["prompt_tokens"], first["tokens"]);
  EXPECT_FALSE(first.contains("cache_miss"));
  EXPECT_EQ(Ask(server, Complete(10, {"--session", id}))["text"], cold["text"]);
  const int64_t before = first["tokens"].get<int64_t>() + 10;
  EXPECT_EQ(append(id, kSecond)["usage"]["cached_tokens"], before - 1);
  const std::string other = Ask(server, {"session", "create"})["session"];
  EXPECT_EQ(append(other, kSecond + text)["cache_miss"], "CACHE_MISS_NO_PREFIX");
  EXPECT_GT(server.Metric("polysketch_prefix_cache_hits_total"), 200);
}

// Ten parts of a session of a million tokens: the state does not grow, nor does the process.
TEST(Session, AMillionTokens) {
  if (!testing::FullCounts()) GTEST_SKIP() << "a minute of prefill: full counts only";
  const Server server;
  const std::string id = Ask(server, {"session", "create"})["session"];
  testing::Random random(3);
  int64_t bytes = 0;
  int64_t memory = 0;
  for (int part = 1; part <= 10; ++part) {
    std::string ids;
    for (int i = 0; i < 100000; ++i) ids += std::to_string(random.Int(10, 1000)) + " ";
    const Json session = Ask(server, {"session", "append", id, "--prompt-tokens", "-"}, ids);
    ASSERT_EQ(session["tokens"], part * 100000);
    if (part == 2) {
      bytes = session["bytes"];
      memory = server.PeakMemoryBytes();
    }
  }
  const Json session = Ask(server, {"session", "list"})["sessions"][0];
  // Of the block buffer, what the position fills.
  EXPECT_LE(session["bytes"].get<int64_t>(), bytes * 5 / 4);
  EXPECT_LE(server.PeakMemoryBytes(), memory + (int64_t{8} << 20));
  EXPECT_EQ(Ask(server, Complete(20, {"--session", id}))["tokens"].size(), 20u);
}

TEST(Session, ACallThatWaitsForASlowStoreIsNoStalledReader) {
  if (!testing::RedisServer::Exists()) GTEST_SKIP() << "there is no redis-server";
  Store store("redis");
  std::vector<std::string> flags = store.flags();
  flags.insert(flags.end(), {"--stall-deadline", "300ms"});
  const Server server({.flags = flags});
  const std::string id = Ask(server, {"session", "create", "--durable"})["session"];
  store.proxy().delay_ms = 1000;
  const Json answer = Ask(server, Complete(5, {"--session", id, "--prompt", kFirst}));
  EXPECT_EQ(answer["tokens"].size(), 5u);
}

// Ends the names of stores whose servers have a mixture in the place of models/demo.
constexpr std::string_view kMixture = "_mixture";

class StoreTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const bool mixture = GetParam().ends_with(kMixture);
    const std::string kind =
        GetParam().substr(0, GetParam().size() - (mixture ? kMixture.size() : 0));
    if (kind == "redis" && !testing::RedisServer::Exists())
      GTEST_SKIP() << "there is no redis-server";
    store_ = std::make_unique<Store>(kind);
    if (mixture) WriteMixture();
  }

  // Of a replica.
  ServerOptions Options() const { return {.model = model_, .flags = store_->flags()}; }

  std::unique_ptr<Store> store_;
  std::string model_;  // empty: models/demo

 private:
  // A random model with the tokenizer of models/demo.
  void WriteMixture() {
    const ModelConfig demo = ModelConfig::Load(ModelFolder(DemoModel())).value();
    ModelConfig config = testing::TinyConfig("mixture");
    config.vocab_size = demo.vocab_size;
    config.add_bos = demo.add_bos;
    config.bos_id = demo.bos_id;
    config.eos_id = demo.eos_id;
    testing::WriteRandomModel(folder_.path() / "mixture", config, DataType::kF32, 1);
    fs::copy(fs::path(DemoModel()) / "tokenizer.model", folder_.path() / "mixture");
    model_ = folder_.path() / "mixture";
  }

  Folder folder_;
};
INSTANTIATE_TEST_SUITE_P(Stores, StoreTest, ::testing::Values("dir", "redis", "dir_mixture"),
                         [](const auto& info) { return info.param; });

// The first layer of the mixture has neither a sketch nor a degree.
TEST_P(StoreTest, AModelIsDescribedByAllItsLayers) {
  const Server server(Options());
  v1::GetModelResponse model;
  ASSERT_TRUE(Client(server.address()).GetModel(&model).ok());
  const bool mixture = !model_.empty();
  EXPECT_EQ(mixture, model.attention() == "softmax+learned_sketch_mixed+polynomial+random_sketch");
  const ModelConfig config = mixture ? testing::TinyConfig(AttentionKind::kRandomSketch)
                                     : ModelConfig::Load(ModelFolder(DemoModel())).value();
  EXPECT_EQ(model.sketch_size(), config.sketch_size);
  EXPECT_EQ(model.power() > 0, mixture);
}

// A stream that one server began and a shutdown stopped goes on at another: the joined output is
// the uninterrupted one.
TEST_P(StoreTest, StreamsMoveToAnotherReplica) {
  // A step of the mixture takes a tenth of the time.
  const int tokens = model_.empty() ? 400 : 4000;
  v1::CompleteRequest request = Greedy(kFirst, tokens);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_seed(7);
  request.mutable_sampling()->set_frequency_penalty(0.2f);
  request.set_ignore_eos(true);
  request.add_stop("no such text \xE2\x82\xAC");
  const Server last(Options());
  const Completion want = Client(last.address()).Complete(request);
  ASSERT_TRUE(want.status.ok()) << want.status.ToString();

  testing::Random random(5);
  int moved = 0;
  const int moves = testing::Count(3, 50);
  for (int i = 0; i < moves; ++i) {
    Server first(Options());
    Client client(first.address());
    const auto stream = client.StartComplete(request);
    Completion got;
    v1::CompleteResponse response;
    const int64_t moment = random.Int(0, tokens - 100);
    bool told = false;
    while (stream->Read(&response)) {
      got.text += response.delta().text() + response.finish().text();
      for (const int32_t token : response.delta().tokens()) got.tokens.push_back(token);
      if (!told && static_cast<int64_t>(got.tokens.size()) >= moment) {
        first.process().Signal(SIGTERM);
        told = true;
      }
      if (response.has_finish()) got.finish = response.finish();
    }
    const Status status = stream->Finish();
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(first.process().Wait(), 0) << first.process().StandardError();
    if (got.finish.reason() == v1::FINISH_REASON_MIGRATED) {
      ++moved;
      ASSERT_EQ(got.finish.resume_token().size(), 32u);
      v1::CompleteRequest resume;
      resume.set_resume_token(got.finish.resume_token());
      const Completion rest = Client(last.address()).Complete(resume);
      ASSERT_TRUE(rest.status.ok()) << rest.status.ToString();
      got.text += rest.text;
      got.tokens.insert(got.tokens.end(), rest.tokens.begin(), rest.tokens.end());
      got.finish = rest.finish;
    }
    EXPECT_EQ(got.text, want.text);
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.finish.reason(), want.finish.reason());
    EXPECT_EQ(got.finish.usage().completion_tokens(), tokens);
  }
  EXPECT_GT(moved, moves / 2) << "too few were under way when the signal came";
}

// Of several choices each goes on where it stopped.
TEST_P(StoreTest, SeveralChoicesMove) {
  constexpr int kChoices = 3;
  constexpr int kTokens = testing::kSanitized ? 400 : 1000;
  v1::CompleteRequest request = Greedy(kFirst, kTokens);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_seed(7);
  request.set_ignore_eos(true);
  request.set_n(kChoices);
  // Tokens of each choice; SIGTERM once there are `most` of all.
  const auto run = [&request](Server* server, int64_t most, v1::Finish* finish) {
    std::vector<std::vector<int32_t>> tokens(kChoices);
    Client client(server->address());
    const auto stream = client.StartComplete(request);
    v1::CompleteResponse response;
    int64_t count = 0;
    while (stream->Read(&response)) {
      const v1::Delta& delta = response.delta();
      for (const int32_t token : delta.tokens()) tokens[delta.choice()].push_back(token);
      const bool before = count < most;
      count += delta.tokens_size();
      if (before && count >= most) server->process().Signal(SIGTERM);
      if (response.has_finish()) *finish = response.finish();
    }
    EXPECT_TRUE(stream->Finish().ok());
    return tokens;
  };
  Server last(Options());
  v1::Finish finish;
  const auto want = run(&last, 1 << 20, &finish);
  Server first(Options());
  auto got = run(&first, 200, &finish);
  ASSERT_EQ(finish.reason(), v1::FINISH_REASON_MIGRATED);
  const Json rest = Ask(last, {"complete", "--resume", finish.resume_token()});
  for (const Json& choice : rest["choices"]) {
    EXPECT_EQ(choice["finish_reason"], "length");
    for (const Json& token : choice["tokens"]) got[choice["choice"].get<size_t>()].push_back(token);
  }
  EXPECT_EQ(got, want);
  EXPECT_EQ(rest["usage"]["completion_tokens"], kChoices * kTokens);
}

// So does each prompt of a request over HTTP, whose choices all end.
TEST_P(StoreTest, SeveralPromptsMove) {
  const int tokens = testing::kSanitized ? 400 : 1000;
  const auto body = [&](const std::string& prompts, int n) {
    return Json{{"prompt", Json::parse(prompts)},
                {"max_tokens", tokens},
                {"n", n},
                {"seed", 7},
                {"temperature", 1},
                {"ignore_eos", true}}
        .dump();
  };
  ServerOptions options = Options();
  options.flags.insert(options.flags.end(), {"--http-listen", "127.0.0.1:0"});
  const Server last(options);
  // `start`, or what a drain left of it and the rest.
  const auto moved = [&](const std::string& start) {
    Server first(options);
    HttpAnswer answer;
    std::thread call([&] { answer = Http(first.http_address(), "/v1/completions", start); });
    while (first.Metric("polysketch_generation_tokens_total") < 20) std::this_thread::yield();
    first.process().Signal(SIGTERM);
    call.join();
    EXPECT_EQ(answer.status, 200) << answer.body;
    return Json::parse(answer.body);
  };
  const auto whole = [&](const std::string& start) {
    return Json::parse(Http(last.http_address(), "/v1/completions", start).body)["choices"];
  };
  const auto resume = [&](const Json& token) {
    const std::string request = Json{{"resume_token", token}}.dump();
    return Json::parse(Http(last.http_address(), "/v1/completions", request).body)["choices"];
  };
  const std::string two = body(R"(["Once upon a time", "The king"])", 1);
  const Json prompts = moved(two), want = whole(two);
  EXPECT_FALSE(prompts.contains("resume_token"));
  for (size_t i = 0; i < 2; ++i) {
    const Json& choice = prompts["choices"][i];
    ASSERT_EQ(choice["finish_reason"], "migrated") << prompts;
    const Json rest = resume(choice["resume_token"]);
    EXPECT_EQ(choice["text"].get<std::string>() + rest[0]["text"].get<std::string>(),
              want[i]["text"]);
  }
  const std::string choices = body(R"("Once upon a time")", 2);
  const Json both = moved(choices), wanted = whole(choices);
  const Json rest = resume(both["resume_token"]);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(both["choices"][i]["finish_reason"], "migrated") << both;
    EXPECT_EQ(both["choices"][i]["text"].get<std::string>() + rest[i]["text"].get<std::string>(),
              wanted[i]["text"]);
  }
}

// The client does the same, and a completion in a session takes the session along.
TEST_P(StoreTest, ASessionMovesWithItsCompletion) {
  constexpr int kTokens = testing::kSanitized ? 1000 : 3000;
  const Server last(Options());
  Server first(Options());
  const std::string id = Ask(first, {"session", "create"})["session"];
  Ask(first, {"session", "append", id, "--prompt", kFirst});
  Client client(first.address());
  v1::CompleteRequest request = Greedy("", kTokens);
  request.clear_prompt();
  request.set_ignore_eos(true);
  request.set_session(id);
  const auto stream = client.StartComplete(request);
  v1::CompleteResponse response;
  ASSERT_TRUE(stream->Read(&response));
  first.process().Signal(SIGTERM);
  std::string text;
  do {
    text += response.delta().text() + response.finish().text();
  } while (stream->Read(&response));
  ASSERT_TRUE(stream->Finish().ok());
  ASSERT_EQ(response.finish().reason(), v1::FINISH_REASON_MIGRATED);
  EXPECT_EQ(first.process().Wait(), 0);

  const Json rest = Ask(last, {"complete", "--resume", response.finish().resume_token()});
  const Json whole = Ask(last, Complete(kTokens, {"--prompt", kFirst}));
  EXPECT_EQ(text + rest["text"].get<std::string>(), whole["text"]);
  EXPECT_EQ(rest["finish_reason"], "length");
  EXPECT_EQ(rest["session"]["session"], id);
  const int64_t prompt = Ask(last, {"tokenize", "--prompt", kFirst})["tokens"].size();
  EXPECT_EQ(rest["session"]["tokens"], prompt + kTokens);
}

// After a drain another server returns stored responses, continues them and deletes them.
TEST_P(StoreTest, StoredResponsesMoveToAnotherReplica) {
  const Folder folder;
  const std::string chat_template = (folder.path() / "template").string();
  WriteFile(chat_template,
            "{% for message in messages %}{{ bos_token + message.role + ': ' + message.content + "
            "eos_token }}{% endfor %}"
            "{% if add_generation_prompt %}{{ bos_token + 'assistant:' }}{% endif %}");
  ServerOptions options = Options();
  options.flags.insert(options.flags.end(),
                       {"--http-listen", "127.0.0.1:0", "--chat-template", chat_template});
  const HttpHeaders acme = {{"X-Tenant-Id", "acme"}};
  const auto respond = [&](const Server& server, const std::string& input, const Json& previous) {
    const Json body = {{"input", input},
                       {"previous_response_id", previous},
                       {"max_output_tokens", 5},
                       {"temperature", 0}};
    const HttpAnswer answer = Http(server.http_address(), "/v1/responses", body.dump(), acme);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return Json::parse(answer.body);
  };
  const auto ask = [&](const Server& server, const Json& response, const std::string& more = "",
                       const std::string& method = "", const HttpHeaders& headers = {}) {
    return Http(server.http_address(), StrCat("/v1/responses/", std::string(response["id"]), more),
                "", headers, method);
  };
  Json first, second;
  {
    Server before(options);
    first = respond(before, kFirst, nullptr);
    second = respond(before, kSecond, first["id"]);
    before.process().Signal(SIGTERM);
    ASSERT_EQ(before.process().Wait(), 0);
  }
  Json third;
  {
    Server after(options);
    EXPECT_EQ(Json::parse(ask(after, first, "", "", acme).body), first);
    EXPECT_EQ(Json::parse(ask(after, second, "", "", acme).body), second);
    EXPECT_EQ(ask(after, second).status, 404);  // of another tenant
    third = respond(after, "And?", second["id"]);
    const Json items = Json::parse(ask(after, third, "/input_items?order=asc", "", acme).body);
    ASSERT_EQ(items["data"].size(), 5u) << items;
    EXPECT_EQ(items["data"][0]["content"][0]["text"], kFirst);
    EXPECT_EQ(items["data"][3], second["output"][0]);
    EXPECT_EQ(ask(after, first, "", "DELETE").status, 404);
    EXPECT_EQ(ask(after, first, "", "DELETE", acme).status, 200);
    EXPECT_EQ(ask(after, first, "", "", acme).status, 404);
    EXPECT_EQ(ask(after, first, "", "DELETE", acme).status, 404);
    after.process().Signal(SIGTERM);
    ASSERT_EQ(after.process().Wait(), 0);
  }
  const Server last(options);
  EXPECT_EQ(ask(last, first, "", "", acme).status, 404);
  EXPECT_EQ(Json::parse(ask(last, third, "", "", acme).body), third);
  const Json items = Json::parse(ask(last, third, "/input_items", "", acme).body);
  EXPECT_EQ(items["data"].size(), 3u) << items;  // they begin after the one that is gone
}

// kill -9 while a client snapshots and appends as fast as it can: whatever was acknowledged is
// there, whole; nothing torn is taken.
TEST_P(StoreTest, AcknowledgedStatesSurviveAKill) {
  testing::Random random(6);
  const int kills = testing::Count(10, 200);
  std::string session;
  int64_t tokens = 0;
  std::vector<std::pair<std::string, int64_t>> snapshots;  // acknowledged
  for (int i = 0; i < kills; ++i) {
    Server server(Options());
    Client client(server.address());
    if (session.empty()) session = Ask(server, {"session", "create", "--durable"})["session"];
    std::atomic<bool> stop{false};
    int64_t in_flight = 0;  // the length that the unacknowledged append would give
    std::thread worker([&] {
      while (!stop) {
        in_flight = tokens + 8;
        const Result<v1::Session> appended = client.AppendSession(
            session, {5, 6, 7, 8, 9, 10, 11, static_cast<int32_t>(tokens % 100 + 20)}, tokens);
        if (!appended.ok()) return;
        tokens = appended->tokens();
        const Result<v1::Snapshot> snapshot = client.SnapshotSession(session);
        if (!snapshot.ok()) return;
        snapshots.emplace_back(snapshot->snapshot(), tokens);
      }
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(random.Int(1, 150)));
    server.process().Signal(SIGKILL);
    server.process().Wait();
    stop = true;
    worker.join();

    const Server after(Options());
    Client check(after.address());
    const auto at = [&](const std::string& id) {
      v1::CompleteRequest request = Greedy("", 1);
      request.clear_prompt();
      request.set_session(id);
      return check.Complete(request);
    };
    // The session is at its last acknowledged length, or one further: an append whose answer was
    // lost. A fork leaves it as it is.
    const Json fork = Ask(after, {"session", "fork", session});
    const int64_t found = fork["tokens"];
    EXPECT_TRUE(found == tokens || found == in_flight) << found << " of " << tokens;
    tokens = found;
    // An empty session, of a kill before the first append, has nothing to continue.
    if (found > 0) {
      EXPECT_TRUE(at(fork["session"]).status.ok());
    }
    Ask(after, {"session", "delete", fork["session"]});
    // All snapshots restore; the output after each is that of the same tokens processed again.
    while (!snapshots.empty()) {
      const auto [key, length] = snapshots.back();
      snapshots.pop_back();
      const Json restored = Ask(after, {"session", "restore", key});
      ASSERT_EQ(restored["tokens"], length);
      if (snapshots.empty() || random.Int(0, 7) == 0) {
        std::vector<int32_t> history;
        for (int64_t t = 0; t < length; t += 8) {
          const std::vector<int32_t> part = {5, 6,  7,  8,
                                             9, 10, 11, static_cast<int32_t>(t % 100 + 20)};
          history.insert(history.end(), part.begin(), part.end());
        }
        EXPECT_EQ(at(restored["session"]).tokens, check.Complete(Greedy(history, 1)).tokens);
      }
      Ask(after, {"session", "delete", restored["session"]});
      Ask(after, {"session", "delete", key});
    }
  }
  EXPECT_GT(tokens, 0);
}

}  // namespace
}  // namespace polysketch::e2e
