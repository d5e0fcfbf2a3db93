// The cuda device as the server meets it: no library, no GPU, the library of the emulation
// (tests/simt), and a device that fails.
#include <cstdlib>
#include <string>
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

TEST(DeviceTest, AFailingDeviceEndsItsRequestsAndTheProcess) {
  Server server({.model = SmallModel(),
                 .flags = {"--device", "cuda", "--drain-timeout", "2s"},
                 .environment = {Library(Binary("libpolysketch-cuda-emulated.so")),
                                 {"POLYSKETCH_CUDA_FAIL_AFTER", "1000"}}});
  Client client(server.address());
  const auto health = client.WatchHealth("polysketch.v1.PolySketch");
  Health state;
  ASSERT_TRUE(health->Read(&state));
  EXPECT_EQ(state, Health::kServing);
  const Completion got = client.Complete(Greedy(kPrompt, 1 << 20));
  EXPECT_EQ(got.status.code(), Code::kInternal) << got.status.ToString();
  ASSERT_TRUE(health->Read(&state));
  EXPECT_EQ(state, Health::kNotServing);
  EXPECT_EQ(server.process().Wait(), 1);
  const std::string log = server.process().StandardError();
  EXPECT_EQ(Count(log, "device_failed"), 1) << log;
}

// The environment variable that sets the emulated device's memory in bytes.
std::pair<std::string, std::string> Memory(int64_t bytes) {
  return {"POLYSKETCH_SIMT_MEMORY", std::to_string(bytes)};
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
  const size_t line = log.find(" device_memory ");
  ASSERT_NE(line, std::string::npos) << log;
  const std::string name = " states_mib=";
  const double states = std::atof(log.c_str() + log.find(name, line) + name.size());
  EXPECT_GT(states, 7) << log;
  EXPECT_LE(states, 7.5) << log;
  EXPECT_TRUE(Client(server.address()).Complete(Greedy(kPrompt, 40)).status.ok());
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
