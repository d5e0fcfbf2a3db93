// polysketch-bench on the emulation's device: an error of the device must not become a figure.
#include <string>

#include "gtest/gtest.h"
#include "tests/e2e/process.h"
#include "tests/testing/environment.h"

namespace polysketch::e2e {
namespace {

// Runs the prefill benchmark of a small model with KV caches on an emulated device, which has
// memory for some hundred tokens.
ProcessResult Prefill(const std::string& tokens) {
  const auto model = testing::SourceDir() / "tests/data/goldens/softmax";
  ProcessOptions options;
  options.arguments = {Binary("polysketch-bench"),
                       "--json",
                       "--device",
                       "cuda",
                       "--model",
                       model.string(),
                       "--weights",
                       "f32",
                       "--step-tokens",
                       "16",
                       "--stages",
                       "prefill",
                       "--repeats",
                       "1",
                       "--prefill",
                       tokens};
  options.environment = {{"POLYSKETCH_CUDA_LIBRARY", Binary("libpolysketch-cuda-emulated.so")},
                         {"POLYSKETCH_SIMT_MEMORY", "1000000"}};
  return RunProcess(options);
}

TEST(BenchTest, WhatFitsIsMeasured) {
  const ProcessResult result = Prefill("16");
  EXPECT_EQ(result.exit_status, 0) << result.standard_error;
  EXPECT_NE(result.standard_output.find("tokens_per_s"), std::string::npos);
}

TEST(BenchTest, APromptThatFindsNoMemoryGivesNoFigure) {
  const ProcessResult result = Prefill("2048");
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_NE(result.standard_error.find("out of memory"), std::string::npos)
      << result.standard_error;
  EXPECT_EQ(result.standard_output.find("tokens_per_s"), std::string::npos);
}

}  // namespace
}  // namespace polysketch::e2e
