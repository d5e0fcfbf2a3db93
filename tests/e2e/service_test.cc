// The server around its requests: health, reflection, metadata, flags, metrics, the text calls,
// stop strings.
#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "gtest/gtest.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"

namespace polysketch::e2e {
namespace {

class Service : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = std::make_unique<Server>();
    client_ = std::make_unique<Client>(server_->address());
  }
  static void TearDownTestSuite() {
    client_.reset();
    server_.reset();
  }
  static std::vector<int32_t> Tokenize(const std::string& text) {
    v1::TokenizeRequest request;
    request.set_text(text);
    v1::TokenizeResponse response;
    const Status status = client_->Tokenize(request, &response);
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(response.tokens_size(), response.pieces_size());
    return {response.tokens().begin(), response.tokens().end()};
  }
  static std::string Detokenize(const std::vector<int32_t>& tokens) {
    v1::DetokenizeRequest request;
    request.mutable_tokens()->Assign(tokens.begin(), tokens.end());
    v1::DetokenizeResponse response;
    const Status status = client_->Detokenize(request, &response);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return response.text();
  }
  static inline std::unique_ptr<Server> server_;
  static inline std::unique_ptr<Client> client_;
};

TEST_F(Service, ReadyLineIsOneJsonObject) {
  const std::string output = server_->process().StandardOutput();
  EXPECT_EQ(output.find('\n'), output.size() - 1) << output;
  const auto ready = nlohmann::json::parse(output);
  EXPECT_EQ(ready.size(), 3u);
  EXPECT_TRUE(ready.at("http").is_null());
  for (const char* key : {"listen", "metrics"}) {
    const auto address = ready.at(key).get<std::string>();
    EXPECT_TRUE(address.starts_with("127.0.0.1:")) << address;
    EXPECT_NE(address, "127.0.0.1:0");
  }
}

TEST_F(Service, HealthKnowsItsNames) {
  for (const char* name : {"", "polysketch.v1.PolySketch"}) {
    const Result<Health> health = client_->CheckHealth(name);
    ASSERT_TRUE(health.ok()) << health.status().ToString();
    EXPECT_EQ(*health, Health::kServing) << name;
  }
  EXPECT_EQ(client_->CheckHealth("other.Service").status().code(), Code::kNotFound);
  const auto watch = client_->WatchHealth("other.Service");
  Health health;
  ASSERT_TRUE(watch->Read(&health));
  EXPECT_EQ(health, Health::kServiceUnknown);
}

TEST_F(Service, ReflectionListsItsServices) {
  const auto stream =
      client_->StartRaw("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo");
  ASSERT_TRUE(
      stream->Write(std::string("\x3A\0", 2)));  // ServerReflectionRequest{list_services: ""}
  std::string response;
  ASSERT_TRUE(stream->Read(&response));
  for (const char* name : {"polysketch.v1.PolySketch", "grpc.health.v1.Health"}) {
    EXPECT_NE(response.find(name), std::string::npos) << name;
  }
  const std::string symbol = "polysketch.v1.PolySketch";
  ASSERT_TRUE(stream->Write("\x22" + std::string(1, static_cast<char>(symbol.size())) + symbol));
  ASSERT_TRUE(stream->Read(&response));  // the file that declares it
  EXPECT_NE(response.find("CompleteUnary"), std::string::npos);
}

TEST_F(Service, ReturnsTheRequestsIdentity) {
  const std::string trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  std::map<std::string, std::string> answer;
  CallOptions options{.metadata = {{"x-request-id", "order-66.a:b_c"}, {"traceparent", trace}},
                      .initial_metadata = &answer};
  EXPECT_TRUE(client_->Complete(Greedy("It", 2), options).status.ok());
  EXPECT_EQ(answer["x-request-id"], "order-66.a:b_c");
  EXPECT_EQ(answer["traceparent"], trace);
  EXPECT_TRUE(server_->Logs("order-66.a:b_c"));
  EXPECT_TRUE(server_->Logs(trace));

  answer.clear();
  EXPECT_TRUE(client_->CompleteUnary(Greedy("It", 2), options).status.ok());
  EXPECT_EQ(answer["x-request-id"], "order-66.a:b_c");

  // What is no id is replaced, and two requests without one have different ids.
  std::set<std::string> made;
  for (const char* id : {"has space", "", "semi;colon"}) {
    answer.clear();
    options.metadata = {{"x-request-id", id}, {"traceparent", "nonsense"}};
    EXPECT_TRUE(client_->Complete(Greedy("It", 2), options).status.ok());
    EXPECT_FALSE(answer["x-request-id"].empty());
    EXPECT_NE(answer["x-request-id"], id);
    EXPECT_EQ(answer.count("traceparent"), 0u);
    made.insert(answer["x-request-id"]);
  }
  EXPECT_EQ(made.size(), 3u);
  // Refused requests have an id as well.
  answer.clear();
  options.metadata = {{"x-request-id", "refused-1"}};
  EXPECT_EQ(client_->Complete({}, options).status.code(), Code::kInvalidArgument);
  EXPECT_EQ(answer["x-request-id"], "refused-1");
}

TEST_F(Service, TextSurvivesTheTokenizer) {
  for (const std::string text :
       {"It was late in the afternoon, said he.", "  two  spaces ", "\n\nlines\n",
        "caf\xC3\xA9 \xE2\x82\xAC", "\xF0\x9F\x98\x80", "<s>control</s><unk>", "", " "}) {
    const std::vector<int32_t> tokens = Tokenize(text);
    ASSERT_FALSE(tokens.empty());
    EXPECT_EQ(tokens[0], 1) << "BOS";
    for (size_t i = 1; i < tokens.size(); ++i)
      EXPECT_GT(tokens[i], 2) << "no control id from text: " << text;
    EXPECT_EQ(Detokenize(tokens), text);
  }
  EXPECT_EQ(Detokenize({1, 2}), "");
}

TEST_F(Service, StopStringsEndTheTextBeforeThem) {
  const Completion whole = client_->Complete(Greedy("It was late in the afternoon", 80));
  ASSERT_TRUE(whole.status.ok()) << whole.status.ToString();
  ASSERT_GT(whole.text.size(), 60u);
  // Wherever a stop string begins and ends: in a token, across tokens, after a false start.
  for (size_t begin = 3; begin + 12 < whole.text.size() && begin < 60; begin += 5) {
    const std::string stop = whole.text.substr(begin, 3 + begin % 8);
    const size_t first = whole.text.find(stop);
    v1::CompleteRequest request = Greedy("It was late in the afternoon", 80);
    request.add_stop("never in the text");
    request.add_stop(stop);
    const Completion stopped = client_->Complete(request);
    EXPECT_EQ(stopped.text, whole.text.substr(0, first)) << stop;
    EXPECT_EQ(stopped.finish.reason(), v1::FINISH_REASON_STOP);
    EXPECT_EQ(stopped.finish.matched_stop(), stop);
    request.set_include_stop_in_output(true);
    EXPECT_EQ(client_->CompleteUnary(request).text, whole.text.substr(0, first) + stop);
  }
}

TEST_F(Service, StopTokensEndTheTokens) {
  const Completion whole = client_->Complete(Greedy("It was late in the afternoon", 40));
  ASSERT_EQ(whole.tokens.size(), 40u);
  v1::CompleteRequest request = Greedy("It was late in the afternoon", 40);
  request.add_stop_token_ids(whole.tokens[20]);
  const Completion stopped = client_->Complete(request);
  EXPECT_EQ(stopped.finish.reason(), v1::FINISH_REASON_STOP);
  ASSERT_LE(stopped.tokens.size(), 21u);
  EXPECT_TRUE(std::equal(stopped.tokens.begin(), stopped.tokens.end(), whole.tokens.begin()));
}

TEST_F(Service, LogprobsComeWithAlternatives) {
  v1::CompleteRequest request = Greedy("It was late in the", 10);
  request.set_logprobs(5);
  const Completion completion = client_->Complete(request);
  ASSERT_EQ(completion.details.size(), 10u);
  for (size_t i = 0; i < completion.details.size(); ++i) {
    const v1::TokenLogprob& detail = completion.details[i];
    ASSERT_EQ(detail.top_size(), 5);
    EXPECT_EQ(detail.top(0).token(), completion.tokens[i]) << "greedy takes the likeliest";
    EXPECT_EQ(detail.top(0).logprob(), detail.logprob());
    EXPECT_FALSE(detail.top(0).piece().empty());
    for (int k = 1; k < 5; ++k) EXPECT_LE(detail.top(k).logprob(), detail.top(k - 1).logprob());
  }
}

TEST_F(Service, LongPromptsSendProgressAndTimings) {
  const Completion completion = client_->Complete(Greedy(std::vector<int32_t>(20000, 317), 3));
  ASSERT_TRUE(completion.status.ok()) << completion.status.ToString();
  const v1::Timings& timings = completion.finish.timings();
  EXPECT_GT(timings.prefill_seconds(), 0);
  EXPECT_GT(timings.decode_seconds(), 0);
  EXPECT_GE(timings.queue_seconds(), 0);
  EXPECT_GE(timings.total_seconds(),
            timings.queue_seconds() + timings.prefill_seconds() + timings.decode_seconds() - 1e-3);
  EXPECT_EQ(completion.finish.usage().prompt_tokens(), 20000);
  // Progress comes about once a second, so a fast machine may need none.
  EXPECT_LE(completion.progress_messages, static_cast<int>(timings.prefill_seconds()) + 1);
  EXPECT_TRUE(timings.prefill_seconds() < 3 || completion.progress_messages > 0);
}

TEST_F(Service, GetModelSaysWhatIsServed) {
  v1::GetModelResponse model;
  ASSERT_TRUE(client_->GetModel(&model).ok());
  EXPECT_EQ(model.name(), "demo");
  EXPECT_EQ(model.attention(), "learned_sketch_mixed");
  EXPECT_EQ(model.vocab_size(), 4096);
  EXPECT_EQ(model.num_layers(), 4);
  EXPECT_NEAR(static_cast<double>(model.parameters()), 2.9e6, 0.05e6);
  EXPECT_TRUE(model.has_tokenizer());
  EXPECT_TRUE(model.add_bos());
  EXPECT_GT(model.limits().max_message_bytes(), 0);
}

TEST(Metrics, MoveAndSatisfyPromtool) {
  const Server server;
  Client client(server.address());
  EXPECT_EQ(server.Metric("polysketch_generation_tokens_total"), 0);
  EXPECT_TRUE(client.Complete(Greedy("It was late", 25)).status.ok());
  EXPECT_TRUE(client.ScoreTokens(std::vector<int32_t>(100, 317), 30).status.ok());
  EXPECT_EQ(client.Complete({}).status.code(), Code::kInvalidArgument);
  ASSERT_TRUE(server.BecomesIdle());

  EXPECT_EQ(server.Metric("polysketch_generation_tokens_total"), 25);
  EXPECT_GE(server.Metric("polysketch_prompt_tokens_total"), 100);
  EXPECT_EQ(server.Metric("polysketch_time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(server.Metric("polysketch_inter_token_latency_seconds_count"), 24);
  EXPECT_EQ(server.Metric("polysketch_request_success_total"), 2);
  EXPECT_EQ(server.Metric(R"(polysketch_request_success_total{finished_reason="length"})"), 1);
  EXPECT_EQ(server.Metric("polysketch_e2e_request_latency_seconds_count"), 2);
  EXPECT_EQ(server.Metric("polysketch_request_queue_time_seconds_count"), 2);
  EXPECT_EQ(server.Metric("polysketch_requests_rejected_total"), 1);
  EXPECT_EQ(server.Metric("polysketch_build_info"), 1);
  EXPECT_GT(server.Metric("polysketch_slot_memory_limit_bytes"), 0);
  EXPECT_GT(server.Metric("process_resident_memory_bytes"), 1 << 20);
  EXPECT_EQ(HttpGet(server.metrics_address(), "/nothing"), "");

  // promtool keeps colons for names of rules.
  const ProcessResult promtool =
      RunProcess({.arguments = {"/bin/sh", "-c", "grep -v vllm: | promtool check metrics"},
                  .standard_input = server.MetricsPage()});
  if (promtool.exit_status == 127)
    GTEST_SKIP() << "promtool is not installed: " << promtool.standard_error;
  EXPECT_EQ(promtool.exit_status, 0) << promtool.standard_error;
  EXPECT_EQ(promtool.standard_error + promtool.standard_output, "");
}

TEST(Configuration, FlagsBeatVariablesBeatTheFile) {
  const std::filesystem::path folder = NewTemporaryFolder();
  WriteFile(folder / "config.json",
            R"({"max-queue": 11, "max-sequences": 3, "max-new-tokens": 77, "log-format": "json"})");
  {
    const Server server(
        {.flags = {"--max-sequences", "5", "--config", folder / "config.json"},
         .environment = {{"POLYSKETCH_MAX_SEQUENCES", "4"}, {"POLYSKETCH_MAX_QUEUE", "12"}}});
    v1::GetModelResponse model;
    ASSERT_TRUE(Client(server.address()).GetModel(&model).ok());
    EXPECT_EQ(model.limits().max_sequences(), 5);    // flag
    EXPECT_EQ(model.limits().max_queue(), 12);       // variable
    EXPECT_EQ(model.limits().max_new_tokens(), 77);  // file
  }
  std::filesystem::remove_all(folder);
}

TEST(Configuration, ALengthIsSetForRequestsThatSetNone) {
  const auto tokens = [](const std::vector<std::string>& flags) {
    const Server server({.flags = flags});
    v1::CompleteRequest request = Greedy("It was late", 1);
    request.clear_max_tokens();
    const Completion completion = Client(server.address()).Complete(request);
    EXPECT_EQ(completion.finish.reason(), v1::FINISH_REASON_LENGTH);
    return completion.tokens.size();
  };
  EXPECT_EQ(tokens({"--default-max-tokens", "33"}), 33u);
  EXPECT_EQ(tokens({"--max-new-tokens", "22"}), 22u);
}

TEST(Configuration, WhatIsWrongIsNamed) {
  const std::string server = Binary("polysketch-server");
  const std::filesystem::path folder = NewTemporaryFolder();
  WriteFile(folder / "unknown.json", R"({"max-qeue": 11})");
  WriteFile(folder / "broken.json", R"({"max-queue": )");
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{}, "--model"},
      {{"--frob"}, "--frob"},
      {{"--model", DemoModel(), "--max-queue", "many"}, "--max-queue"},
      {{"--model", DemoModel(), "--threads", "-1"}, "--threads"},
      {{"--model", DemoModel(), "--device", "abacus"}, "--device"},
      {{"--model", DemoModel(), "--stall-deadline", "30"}, "--stall-deadline"},
      {{"--model", DemoModel(), "--listen", "127.0.0.1:99999"}, "--listen"},
      {{"--model", "/nonexistent", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"},
       "/nonexistent"},
      {{"--model", DemoModel(), "--config", folder / "unknown.json"}, "max-qeue"},
      {{"--model", DemoModel(), "--config", folder / "broken.json"}, "broken.json"},
      {{"--model", DemoModel(), "--config", "/nonexistent.json"}, "/nonexistent.json"},
  };
  for (auto [arguments, named] : cases) {
    arguments.insert(arguments.begin(), server);
    const ProcessResult result = RunProcess({.arguments = arguments});
    EXPECT_GT(result.exit_status, 0) << named;
    EXPECT_NE(result.standard_error.find(named), std::string::npos) << result.standard_error;
    EXPECT_EQ(result.standard_output, "");
  }
  // Nothing listens before the folder is read: a listener takes seconds to stop.
  const ProcessResult no_model = RunProcess({.arguments = {server, "--model", "/nonexistent"}});
  EXPECT_EQ(no_model.exit_status, 1);
  EXPECT_EQ(no_model.standard_error,
            "polysketch-server: /nonexistent/config.json: No such file or directory\n");
  const ProcessResult no_draft =
      RunProcess({.arguments = {server, "--model", DemoModel(), "--draft-model", "/nonexistent"}});
  EXPECT_EQ(no_draft.standard_error, no_model.standard_error);
  const ProcessResult variable = RunProcess({.arguments = {server, "--model", DemoModel()},
                                             .environment = {{"POLYSKETCH_THREADS", "x"}}});
  EXPECT_NE(variable.standard_error.find("POLYSKETCH_THREADS"), std::string::npos)
      << variable.standard_error;
  std::filesystem::remove_all(folder);
}

TEST(Configuration, VersionAndHelp) {
  const ProcessResult version =
      RunProcess({.arguments = {Binary("polysketch-server"), "--version"}});
  EXPECT_EQ(version.exit_status, 0);
  EXPECT_TRUE(version.standard_output.starts_with("polysketch-server ")) << version.standard_output;
  const ProcessResult help = RunProcess({.arguments = {Binary("polysketch-server"), "--help"}});
  EXPECT_EQ(help.exit_status, 0);
  EXPECT_NE(help.standard_output.find("--max-queue"), std::string::npos);
}

}  // namespace
}  // namespace polysketch::e2e
