// Limits of the process: threads and memory that the machine does not give. A request may be
// refused; the server stays.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"
#include "tests/testing/environment.h"

namespace polysketch::e2e {
namespace {

namespace fs = std::filesystem;

int Threads(Process& process) {
  int count = 0;
  for ([[maybe_unused]] const auto& task :
       fs::directory_iterator(StrCat("/proc/", process.pid(), "/task")))
    ++count;
  return count;
}

class ThreadLimit : public ::testing::Test {
 protected:
  ~ThreadLimit() override { fs::remove_all(folder_); }

  // From now on, of processes with the environment below.
  void Set(int threads) { WriteFile(folder_ / "limit", std::to_string(threads)); }

  const fs::path folder_ = NewTemporaryFolder();
  const std::vector<std::pair<std::string, std::string>> environment_ = {
      {"LD_PRELOAD", THREAD_LIMIT_LIBRARY}, {"THREAD_LIMIT", (folder_ / "limit").string()}};
};

TEST_F(ThreadLimit, AServerThatHasStartedNeedsNoMoreThreads) {
  // No line of the log before the limit: the log's thread is there, too.
  Server server({.flags = {"--http-listen", "127.0.0.1:0", "--log-level", "warning",
                           "--state-store", StrCat("dir:", (folder_ / "store").string())},
                 .environment = environment_});
  Set(Threads(server.process()));
  std::vector<std::thread> clients;
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&server, i] {
      for (int round = 0; round < 4; ++round) {
        Client client(server.address());
        EXPECT_TRUE(client.Complete(Greedy(StrCat("It was ", i), 8)).status.ok());
        const HttpAnswer answer =
            Http(server.http_address(), "/v1/completions",
                 R"({"prompt":"It was","max_tokens":4,"guided_regex":"[a-z]+"})");
        EXPECT_TRUE(answer.status == 200 || answer.status == 429 || answer.status == 503)
            << answer.status << answer.body;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  ASSERT_TRUE(server.process().Running());
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 0);
}

TEST_F(ThreadLimit, AStartWithoutThreadsSaysSo) {
  for (const int threads : {1, 4, 16, 30}) {
    Set(threads);
    const ProcessResult result =
        RunProcess({.arguments = {Binary("polysketch-server"), "--model", DemoModel(), "--listen",
                                  "127.0.0.1:0", "--http-listen", "", "--metrics-listen", ""},
                    .environment = environment_});
    EXPECT_EQ(result.exit_status, 1) << threads << ": " << result.standard_error;
    EXPECT_NE(result.standard_error.find("cannot start"), std::string::npos)
        << threads << ": " << result.standard_error;
  }
}

constexpr rlim_t kMiB = rlim_t{1} << 20;

rlim_t AddressSpace(Process& process) {
  const std::string statm = ReadFile(StrCat("/proc/", process.pid(), "/statm"));
  return std::stoull(statm) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

// Requests that take more than the limit of memory leaves are refused. The server stays, and serves
// again when they have ended.
TEST(MemoryLimit, RequestsAreRefusedWhereThereIsNoMemory) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers map all of the address space";
  Server server({.flags = {"--http-listen", "127.0.0.1:0", "--request-memory", "1GiB"}});
  Client neighbour(server.address());
  ASSERT_TRUE(neighbour.Complete(Greedy("It was", 4)).status.ok());
  const rlim_t most = AddressSpace(server.process()) + 128 * kMiB;
  const rlimit limit{.rlim_cur = most, .rlim_max = most};
  ASSERT_EQ(prlimit(server.process().pid(), RLIMIT_AS, &limit, nullptr), 0);
  std::string text;
  while (text.size() < 3'000'000) text += "It was late. ";
  nlohmann::json prompts = nlohmann::json::array();
  for (int i = 0; i < 8; ++i) prompts.push_back(text);
  const std::string body = nlohmann::json{{"prompt", std::move(prompts)}, {"max_tokens", 1}}.dump();
  std::atomic<int> refused = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      const HttpAnswer answer = Http(server.http_address(), "/v1/completions", body);
      if (answer.status == 429 || answer.status == 503 || answer.status == 413) ++refused;
    });
    clients.emplace_back([&] {
      Client client(server.address());
      v1::TokenizeResponse response;
      v1::TokenizeRequest request;
      request.set_text(text);
      if (client.Tokenize(request, &response).code() == Code::kResourceExhausted) ++refused;
    });
  }
  for (std::thread& client : clients) client.join();
  ASSERT_TRUE(server.process().Running());
  EXPECT_GT(refused, 0);
  EXPECT_TRUE(server.Logs("memory_short"));
  EXPECT_TRUE(WaitUntil([&] { return neighbour.Complete(Greedy("It was", 4)).status.ok(); }));
}

// KV caches grow with their sequences: where the process gets no more memory, a sequence ends with
// an error.
TEST(MemoryLimit, KvCachesThatFindNoMemoryEndTheirRequests) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers map all of the address space";
  Server server({.model = testing::SourceDir() / "tests/data/goldens/softmax",
                 .flags = {"--request-memory", "1GiB", "--prefix-cache-min-tokens", "0"}});
  Client neighbour(server.address());
  v1::CompleteRequest request;
  request.set_max_tokens(1);
  const auto set_prompt = [&](int tokens) {
    auto* const ids = request.mutable_prompt()->mutable_tokens();
    ids->clear_ids();
    for (int i = 0; i < tokens; ++i) ids->add_ids(i % 90);
  };
  set_prompt(4);
  ASSERT_TRUE(neighbour.Complete(request).status.ok());
  const rlim_t most = AddressSpace(server.process()) + 100 * kMiB;
  const rlimit limit{.rlim_cur = most, .rlim_max = most};
  ASSERT_EQ(prlimit(server.process().pid(), RLIMIT_AS, &limit, nullptr), 0);
  set_prompt(8'000);  // 8 MiB each
  std::atomic<int> refused = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&] {
      Client client(server.address());
      const Status status = client.Complete(request).status;
      if (status.code() == Code::kResourceExhausted) ++refused;
      EXPECT_TRUE(status.ok() || status.code() == Code::kResourceExhausted) << status.ToString();
    });
  }
  for (std::thread& client : clients) client.join();
  ASSERT_TRUE(server.process().Running());
  EXPECT_GT(refused, 0);
  set_prompt(4);
  EXPECT_TRUE(WaitUntil([&] { return neighbour.Complete(request).status.ok(); }));
}

TEST(MemoryLimit, AStartWithoutMemorySaysSo) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers map all of the address space";
  for (const int mib : {100, 150}) {
    const ProcessResult result = RunProcess(
        {.arguments = {
             "/bin/sh", "-c",
             StrCat("ulimit -v ", mib * 1024, "; exec ", Binary("polysketch-server"), " --model ",
                    DemoModel(), " --listen 127.0.0.1:0 --http-listen= --metrics-listen=")}});
    EXPECT_EQ(result.exit_status, 1) << mib << ": " << result.standard_error;
    EXPECT_NE(result.standard_error.find("ulimit -v: expected at least"), std::string::npos)
        << mib << ": " << result.standard_error;
  }
}

}  // namespace
}  // namespace polysketch::e2e
