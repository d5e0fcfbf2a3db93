// The load generator against the real server: it counts what the server counts.
#include <nlohmann/json.hpp>

#include "gtest/gtest.h"
#include "tests/e2e/server.h"
#include "tests/testing/environment.h"

namespace polysketch::e2e {
namespace {

constexpr char kHttp[] = "--http-listen=127.0.0.1:0";

struct Outcome {
  int exit_status = 0;
  nlohmann::json json;
};

Outcome Load(const Server& server, std::vector<std::string> options) {
  options.insert(options.begin(),
                 {Binary("polysketch-loadgen"), "--server", server.address(), "--json", "--quiet"});
  const ProcessResult result = RunProcess({.arguments = options});
  return {result.exit_status, nlohmann::json::parse(result.standard_output, nullptr, false)};
}

TEST(Loadgen, SixtyFourStreamsWithoutAnError) {
  const Server server({.flags = {"--max-sequences", "64"}});
  const int requests = testing::Count(128, 640);
  const Outcome run = Load(
      server, {"--concurrency", "64", "--requests", std::to_string(requests), "--prompt-tokens",
               "uniform:4:40", "--output-tokens", "32", "--objective-latency", "1000"});
  EXPECT_EQ(run.exit_status, 0);
  const nlohmann::json& report = run.json.at("report");
  EXPECT_EQ(report.at("requests"), requests);
  EXPECT_EQ(report.at("ok"), requests);
  EXPECT_TRUE(report.at("errors").empty());
  EXPECT_EQ(report.at("output_tokens"), 32 * requests);
  EXPECT_EQ(report.at("goodput_share"), 1);
  EXPECT_EQ(server.Metric("polysketch_generation_tokens_total"), 32 * requests);
  EXPECT_EQ(server.Metric("polysketch_prompt_tokens_total"), report.at("prompt_tokens"));
  for (const char* name : {"time_to_first_token_seconds", "time_between_tokens_seconds",
                           "time_per_output_token_seconds", "e2e_latency_seconds"}) {
    EXPECT_GT(report.at(name).at("mean"), 0) << name;
    EXPECT_LE(report.at(name).at("p50"), report.at(name).at("p99")) << name;
  }
  EXPECT_TRUE(server.BecomesIdle());
}

TEST(Loadgen, ArrivalsAtARateAndConversations) {
  const Server server;
  const Outcome run =
      Load(server, {"--rate", "50", "--requests", "20", "--turns", "3", "--shared-prefix", "8",
                    "--output-tokens", "4", "--prompt-tokens", "5", "--connections", "2"});
  EXPECT_EQ(run.exit_status, 0);
  EXPECT_EQ(run.json.at("report").at("requests"), 60);
  // Of a conversation: 13, then 4 + 5 more, and again.
  EXPECT_EQ(run.json.at("report").at("prompt_tokens"), 20 * (13 + 22 + 31));
}

TEST(Loadgen, Sessions) {
  const Server server;
  const Outcome run =
      Load(server, {"--sessions", "--concurrency", "4", "--requests", "12", "--turns", "3",
                    "--output-tokens", "4", "--prompt-tokens", "5"});
  EXPECT_EQ(run.exit_status, 0);
  EXPECT_EQ(run.json.at("report").at("requests"), 36);
  EXPECT_EQ(run.json.at("report").at("output_tokens"), 36 * 4);
  EXPECT_EQ(server.Metric("polysketch_sessions"), 0) << "conversations that ended are deleted";
  EXPECT_EQ(server.Metric("polysketch_rpcs_total{code=\"OK\",rpc=\"CreateSession\"}"), 12);
}

TEST(Loadgen, Http) {
  const Server server({.flags = {"--max-sequences", "8", kHttp}});
  const Outcome run =
      Load(server, {"--http", server.http_address(), "--concurrency", "8", "--requests", "24",
                    "--prompt-tokens", "5", "--output-tokens", "uniform:1:20", "--seed", "7"});
  EXPECT_EQ(run.exit_status, 0);
  const nlohmann::json& report = run.json.at("report");
  EXPECT_EQ(report.at("ok"), 24);
  EXPECT_EQ(report.at("prompt_tokens"), 24 * 5);
  EXPECT_EQ(server.Metric("polysketch_generation_tokens_total"), report.at("output_tokens"));
  EXPECT_GT(report.at("time_to_first_token_seconds").at("p50"), 0);
  EXPECT_EQ(server.Metric("polysketch_rpcs_total{code=\"OK\",rpc=\"Complete\"}"), 24);
}

TEST(Loadgen, HttpSessions) {
  const Server server({.flags = {kHttp}});
  const Outcome run =
      Load(server, {"--http", server.http_address(), "--sessions", "--turns", "3", "--requests",
                    "4", "--prompt-tokens", "5", "--output-tokens", "4"});
  EXPECT_EQ(run.exit_status, 0);
  EXPECT_EQ(run.json.at("report").at("prompt_tokens"), 4 * (5 + 14 + 23));
}

TEST(Loadgen, HttpSaysWhatWentWrong) {
  const Server server({.flags = {"--max-sequences", "1", "--max-queue", "0", kHttp}});
  const std::string& http = server.http_address();
  const Outcome refused = Load(server, {"--http", http, "--concurrency", "8", "--requests", "16"});
  EXPECT_EQ(refused.exit_status, 1);
  EXPECT_GT(refused.json.at("report").at("errors").at("HTTP 429"), 0);
  EXPECT_EQ(refused.json.at("report").at("requests"), 16);
  const Outcome late = Load(server, {"--http", http, "--concurrency", "1", "--requests", "2",
                                     "--timeout", "0.05", "--output-tokens", "100000"});
  EXPECT_EQ(late.json.at("report").at("errors").at("DEADLINE_EXCEEDED"), 2);
  EXPECT_TRUE(server.BecomesIdle()) << "a request whose client has left is cancelled";
  const Outcome unreachable = Load(server, {"--http", "127.0.0.1:1", "--requests", "2"});
  EXPECT_EQ(unreachable.json.at("report").at("errors").at("UNAVAILABLE"), 2);
  EXPECT_EQ(Load(server, {"--http", "http://127.0.0.1"}).exit_status, 2);
  EXPECT_EQ(Load(server, {"--http", http, "--turns", "2"}).exit_status, 2);
}

TEST(Loadgen, SaysWhatWentWrong) {
  const Server server({.flags = {"--max-sequences", "1", "--max-queue", "0"}});
  const Outcome run = Load(server, {"--concurrency", "8", "--requests", "16"});
  EXPECT_EQ(run.exit_status, 1);
  const nlohmann::json& report = run.json.at("report");
  EXPECT_GT(report.at("errors").at("RESOURCE_EXHAUSTED"), 0);
  EXPECT_EQ(report.at("requests"), 16);
  EXPECT_EQ(Load(server, {"--prompt-tokens", "gaussian:1"}).exit_status, 2);
}

}  // namespace
}  // namespace polysketch::e2e
