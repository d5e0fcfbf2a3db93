// --http-listen beside gRPC: what tests/deploy/status_page_test.py says in a browser, here for the
// sanitizers too.
#include <signal.h>

#include <future>
#include <nlohmann/json.hpp>
#include <sstream>

#include "gtest/gtest.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"

namespace polysketch::e2e {
namespace {

constexpr char kPrompt[] = "It was late in the afternoon";

std::string Request(int max_tokens) {
  return nlohmann::json({{"prompt", {{"text", kPrompt}}},
                         {"max_tokens", max_tokens},
                         {"sampling", {{"temperature", 0}}}})
      .dump();
}

// All text of a stream of messages, and its last message.
std::pair<std::string, nlohmann::json> Read(const std::string& body) {
  std::string text;
  nlohmann::json last;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    last = nlohmann::json::parse(line);
    if (last.contains("delta")) text += last["delta"].value("text", "");
    if (last.contains("finish")) text += last["finish"].value("text", "");
  }
  return {text, last};
}

TEST(StatusPage, CompletionsEqualThoseOfGrpc) {
  const Server server({.flags = {"--http-listen", "127.0.0.1:0"}});
  Client client(server.address());
  const Completion expected = client.Complete(Greedy(kPrompt, 60));
  ASSERT_TRUE(expected.status.ok()) << expected.status.ToString();
  std::vector<std::future<HttpAnswer>> together;
  for (int i = 0; i < 3; ++i) {
    together.push_back(std::async(std::launch::async, [&] {
      return Http(server.http_address(), "/api/complete", Request(60));
    }));
  }
  for (auto& answer : together) {
    const HttpAnswer got = answer.get();
    EXPECT_EQ(got.status, 200);
    EXPECT_EQ(Read(got.body).first, expected.text);
  }
  EXPECT_EQ(Http(server.http_address(), "/api/complete", "{").status, 400);
  EXPECT_EQ(Http(server.http_address(), "/nowhere").status, 404);
  EXPECT_EQ(Http(server.http_address(), "/readyz").status, 200);
  EXPECT_TRUE(nlohmann::json::parse(HttpGet(server.http_address(), "/api/status")).at("ready"));
}

TEST(StatusPage, AShutdownCutsWhatDoesNotEndInTime) {
  Server server({.flags = {"--http-listen", "127.0.0.1:0", "--drain-timeout", "300ms"}});
  auto endless = std::async(std::launch::async, [&] {
    return Http(server.http_address(), "/api/complete", Request(1 << 20));
  });
  ASSERT_TRUE(server.ComesToRun(1));
  server.process().Signal(SIGTERM);
  const auto [text, last] = Read(endless.get().body);
  ASSERT_TRUE(last.contains("error")) << last << "\n" << server.process().StandardError();
  EXPECT_EQ(last.at("error").at("code"), "UNAVAILABLE") << last;
  EXPECT_EQ(server.process().Wait(), 0) << server.process().StandardError();
}

TEST(StatusPage, AWrongAddressIsNamed) {
  for (const char* address :
       {"8080", "127.0.0.1:99999", "nowhere.invalid:80", "1.2.3.4:1,1.2.3.4:2"}) {
    Server server({.flags = {"--http-listen", address}}, Server::Wait::kNot);
    EXPECT_NE(server.process().Wait(), 0);
    EXPECT_NE(server.process().StandardError().find("--http-listen"), std::string::npos) << address;
  }
}

}  // namespace
}  // namespace polysketch::e2e
