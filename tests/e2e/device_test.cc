// The cuda device as the server meets it: no library, no GPU, the library of the emulation
// (tests/simt), and a device that fails.
#include <cstdlib>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"
#include "tests/testing/environment.h"

namespace polysketch::e2e {
namespace {

std::string Golden(const std::string& name) {
  return (testing::SourceDir() / "tests/data/goldens" / name).string();
}

std::string SmallModel() { return Golden("learned_sketch_mixed"); }

const std::vector<int32_t> kPrompt = {1, 2, 3};

std::pair<std::string, std::string> Library(const std::string& path) {
  return {"POLYSKETCH_CUDA_LIBRARY", path};
}

int Count(const std::string& text, const std::string& what) {
  int count = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST(DeviceTest, AutoWithoutAGpuSaysSoOnceAndTakesTheCpu) {
  Server server(
      {.model = SmallModel(), .flags = {"--device", "auto"}, .environment = {Library("/none.so")}});
  EXPECT_TRUE(Client(server.address()).Complete(Greedy(kPrompt, 5)).status.ok());
  EXPECT_TRUE(server.Logs(" ready "));  // the log is written beside the server's work
  const std::string log = server.process().StandardError();
  EXPECT_EQ(Count(log, "no_gpu"), 1) << log;
  EXPECT_EQ(Count(log, "/none.so"), 1) << log;
  EXPECT_EQ(Count(log, "name=cpu/"), 1) << log;
}

TEST(DeviceTest, CudaWithoutAGpuEnds) {
  Server server(
      {.model = SmallModel(), .flags = {"--device", "cuda"}, .environment = {Library("/none.so")}},
      Server::Wait::kNot);
  EXPECT_EQ(server.process().Wait(), 1);
  EXPECT_EQ(Count(server.process().StandardError(), "--device cuda: no CUDA library"), 1)
      << server.process().StandardError();
}

TEST(DeviceTest, ALibraryOfAnotherKindIsRefused) {
  Server server({.model = SmallModel(),
                 .flags = {"--device", "cuda"},
                 .environment = {Library("/lib/x86_64-linux-gnu/libm.so.6")}},
                Server::Wait::kNot);
  EXPECT_EQ(server.process().Wait(), 1);
  EXPECT_EQ(Count(server.process().StandardError(), "found none; build the library"), 1);
}

TEST(DeviceTest, ADeviceThatCannotBeUsedEndsTheStartWithTheReason) {
  for (const auto& [variable, value, reason] :
       {std::tuple("POLYSKETCH_SIMT_DRIVER", "12040",
                   "the NVIDIA driver is too old: expected one for CUDA 13.0 or newer, found one "
                   "for CUDA 12.4"),
        std::tuple("POLYSKETCH_SIMT_DRIVER", "0", "no CUDA device: no NVIDIA driver"),
        std::tuple("POLYSKETCH_SIMT_NO_CODE", "1",
                   "expected a library with code for compute capability 8.0")}) {
    Server server(
        {.model = SmallModel(),
         .flags = {"--device", "cuda"},
         .environment = {Library(Binary("libpolysketch-cuda-emulated.so")), {variable, value}}},
        Server::Wait::kNot);
    EXPECT_EQ(server.process().Wait(), 1) << reason;
    const std::string log = server.process().StandardError();
    EXPECT_EQ(Count(log, reason), 1) << log;
  }
}

TEST(DeviceTest, TheLibraryServes) {
  Server cuda({.model = SmallModel(),
               .flags = {"--device", "auto"},
               .environment = {Library(Binary("libpolysketch-cuda-emulated.so"))}});
  EXPECT_EQ(Count(cuda.process().StandardError(), "no_gpu"), 0);
  const Server cpu({.model = SmallModel(), .flags = {"--device", "cpu"}});
  const Completion got = Client(cuda.address()).Complete(Greedy(kPrompt, 12));
  EXPECT_TRUE(got.status.ok()) << got.status.ToString();
  EXPECT_EQ(got.tokens, Client(cpu.address()).Complete(Greedy(kPrompt, 12)).tokens);
}

// Streams that run, those that wait for a slot, and one of a session.
TEST(DeviceTest, AFailingDeviceEndsItsRequestsAndTheProcess) {
  Server server({.model = SmallModel(),
                 .flags = {"--device", "cuda", "--max-sequences", "2", "--drain-timeout", "2s"},
                 .environment = {Library(Binary("libpolysketch-cuda-emulated.so")),
                                 {"POLYSKETCH_CUDA_FAIL_AFTER", "1000"}}});
  Client client(server.address(), {.connect_first = true});
  const auto health = client.WatchHealth("polysketch.v1.PolySketch");
  Health state;
  ASSERT_TRUE(health->Read(&state));
  EXPECT_EQ(state, Health::kServing);
  const Result<v1::Session> session = client.CreateSession();
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  std::vector<Completion> got(4);
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < got.size(); ++i) {
      v1::CompleteRequest request = Greedy(kPrompt, 1 << 20);
      if (i == 0) request.set_session(session->session());
      threads.emplace_back(
          [&client, request, &result = got[i]] { result = client.Complete(request); });
    }
  }
  ASSERT_TRUE(health->Read(&state));
  EXPECT_EQ(state, Health::kNotServing);
  EXPECT_EQ(server.process().Wait(), 1);
  const std::string log = server.process().StandardError();
  EXPECT_EQ(Count(log, "device_failed"), 1) << log;
  size_t failed = 0, tokens = 0;
  for (const Completion& completion : got) {
    // One that starts after the failure is refused.
    EXPECT_TRUE(completion.status.code() == Code::kInternal ||
                completion.status.code() == Code::kUnavailable)
        << completion.status.ToString();
    failed += completion.status.code() == Code::kInternal ? 1 : 0;
    tokens += completion.tokens.size();
  }
  EXPECT_GE(failed, 1u);
  EXPECT_GE(tokens, 1u);
}

// The environment variable that sets the emulated device's memory in bytes.
std::pair<std::string, std::string> Memory(int64_t bytes) {
  return {"POLYSKETCH_SIMT_MEMORY", std::to_string(bytes)};
}

// The value of a field of the line device_memory.
double MemoryField(const std::string& log, const std::string& name) {
  const size_t line = log.find(" device_memory ");
  const size_t field = line == std::string::npos ? line : log.find(" " + name + "=", line);
  if (field == std::string::npos) ADD_FAILURE() << log;
  return field == std::string::npos ? 0 : std::atof(log.c_str() + field + name.size() + 2);
}

TEST(DeviceTest, WhatItHoldsIsMadeBeforeReadinessAndSaid) {
  Server server(
      {.model = SmallModel(),
       .flags = {"--device", "cuda", "--max-sequences", "3"},
       .environment = {Library(Binary("libpolysketch-cuda-emulated.so")), Memory(1 << 30)}});
  EXPECT_TRUE(server.Logs(" ready "));  // the log is written beside the server's work
  const std::string log = server.process().StandardError();
  EXPECT_EQ(Count(log, " sequences=3 "), 1) << log;
  EXPECT_EQ(Count(log, " device_memory weights_mib="), 1) << log;
}

// Blocks of KV caches are states too: 6 MiB, and a quarter of that for preempted sequences.
TEST(DeviceTest, KvCachesAreMadeBeforeReadiness) {
  Server server(
      {.model = Golden("softmax"),
       .flags = {"--device", "cuda", "--slot-memory", "6MiB"},
       .environment = {Library(Binary("libpolysketch-cuda-emulated.so")), Memory(1 << 30)}});
  EXPECT_TRUE(server.Logs(" ready "));  // the log is written beside the server's work
  const std::string log = server.process().StandardError();
  const double states = MemoryField(log, "states_mib");
  EXPECT_GT(states, 7) << log;
  EXPECT_LE(states, 7.5) << log;
  EXPECT_TRUE(Client(server.address()).Complete(Greedy(kPrompt, 40)).status.ok());
}

// No admission asks the device for memory: a server whose start took all of it serves as many
// sequences as it has slots, choices, waiting requests and sessions. A state has 0.7 MiB, more than
// what the log's rounding may leave.
TEST(DeviceTest, AdmissionNeedsNoMemoryOfTheDevice) {
  constexpr int64_t kBytes = 1 << 30;
  const auto options = [](int64_t bytes) {
    return ServerOptions{
        .model = Golden("learned_sketch_mixed_d64_r32"),
        .flags = {"--device", "cuda", "--max-sequences", "3", "--max-step-tokens", "32"},
        .environment = {Library(Binary("libpolysketch-cuda-emulated.so")), Memory(bytes)}};
  };
  double free = 0;
  {
    Server server(options(kBytes));
    ASSERT_TRUE(server.Logs(" ready "));
    free = MemoryField(server.process().StandardError(), "free_mib");
  }
  // The log rounds to a tenth.
  Server server(options(kBytes - static_cast<int64_t>((free - 0.1) * (1 << 20))));
  ASSERT_TRUE(server.Logs(" ready "));
  EXPECT_LE(MemoryField(server.process().StandardError(), "free_mib"), 0.2);
  Client client(server.address(), {.connect_first = true});
  const Result<v1::Session> session = client.CreateSession();
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  std::vector<Completion> got(7);
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < got.size(); ++i) {
      v1::CompleteRequest request = Greedy(kPrompt, 8);
      if (i == 0) request.set_session(session->session());
      if (i == 1) request.set_n(3);
      threads.emplace_back(
          [&client, request, &result = got[i]] { result = client.Complete(request); });
    }
  }
  for (const Completion& completion : got)
    EXPECT_TRUE(completion.status.ok()) << completion.status.ToString();
  v1::CompleteRequest next = Greedy(kPrompt, 8);
  next.set_session(session->session());
  EXPECT_TRUE(client.Complete(next).status.ok());
}

TEST(DeviceTest, StatesThatDoNotFitEndTheStart) {
  for (const auto& [model, flag, value] :
       {std::tuple(SmallModel(), "--max-sequences", "400"),
        std::tuple(Golden("softmax"), "--slot-memory", "8MiB")}) {
    Server server(
        {.model = model,
         .flags = {"--device", "cuda", flag, value},
         .environment = {Library(Binary("libpolysketch-cuda-emulated.so")), Memory(8 << 20)}},
        Server::Wait::kNot);
    EXPECT_EQ(server.process().Wait(), 1) << model;
    const std::string log = server.process().StandardError();
    EXPECT_EQ(Count(log, "out of memory"), 1) << log;
  }
}

}  // namespace
}  // namespace polysketch::e2e
