// Launches, bytes of device memory and tensor core instructions of a prompt's chunk and of decoding
// steps, under the emulation, beside the limits of budget/steps.txt and beside the least that a step
// needs. The shapes are small and the figures exact: a figure that moves has a cause.
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include "tests/cuda/step_counts.h"
#include "tests/testing/environment.h"

namespace polysketch {
namespace {

using testing::StepShape;

const std::vector<std::string> kFigures = {"launches", "read", "written", "hmma"};

ModelConfig Config() {
  ModelConfig config;
  config.attention = AttentionKind::kLearnedSketchMixed;
  config.vocab_size = 512;
  config.emb_dim = 128;
  config.num_heads = 2;
  config.num_layers = 2;
  config.context_length = 1024;
  config.sketch_size = 32;
  config.grain_size = 64;
  return config;
}

std::filesystem::path TablePath() { return testing::SourceDir() / "tests/cuda/budget/steps.txt"; }

// Limits by the step's name, in the order of kFigures.
std::map<std::string, std::vector<int64_t>> ReadLimits() {
  std::map<std::string, std::vector<int64_t>> limits;
  std::ifstream file(TablePath());
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::vector<int64_t> numbers(kFigures.size());
    for (int64_t& number : numbers) words >> number;
    std::string name;
    std::getline(words >> std::ws, name);
    limits[name] = numbers;
  }
  return limits;
}

constexpr int kChunk = 192;

// Counts the steps of a model with these weights, and compares them with the limits.
void CheckSteps(DataType weights, const std::vector<StepShape>& shapes) {
  testing::CountedModel counted(Config(), weights, kChunk);
  const auto limits = ReadLimits();
  for (const StepShape& shape : shapes) {
    const auto kernels = testing::CountStep(&counted, shape);
    const auto needs = testing::NeedsOf(counted.config, counted.model->weight_bytes(), shape);
    testing::PrintStep(shape, kernels, needs, testing::DeviceModel());
    const simt::KernelCount total = testing::Total(kernels);
    const std::vector<int64_t> figures = {total.launches, total.read, total.written,
                                          total.products};
    const auto row = limits.find(shape.name);
    ASSERT_NE(row, limits.end()) << shape.name << ": no row in " << TablePath();
    for (size_t i = 0; i < kFigures.size(); ++i) {
      const int64_t limit = row->second[i];
      EXPECT_LE(figures[i], limit)
          << shape.name << ": " << kFigures[i] << " " << figures[i] << ", limit " << limit;
      if (static_cast<double>(figures[i]) < 0.95 * static_cast<double>(limit)) {
        std::printf("%s: %s %ld, limit %ld: the limit can be lowered in %s\n", shape.name.c_str(),
                    kFigures[i].c_str(), static_cast<long>(figures[i]), static_cast<long>(limit),
                    TablePath().c_str());
      }
    }
    // No kernel does without what a step needs: the counts see every kernel.
    EXPECT_GE(static_cast<double>(total.read + total.written), needs.bytes) << shape.name;
    EXPECT_GE(static_cast<double>(total.products), needs.products) << shape.name;
  }
}

TEST(StepBudgetTest, NoStepIsAboveItsLimits) {
  CheckSteps(DataType::kBf16, {{"chunk of 192 tokens", 1, kChunk, 64},
                               {"decoding, 1 sequence", 1, 1, 232},
                               {"decoding, 64 sequences", 64, 1, 232}});
}

TEST(StepBudgetTest, NoChunkOfAQuantisedModelIsAboveItsLimits) {
  CheckSteps(DataType::kQ8, {{"chunk of 192 tokens, q8", 1, kChunk, 64}});
  CheckSteps(DataType::kQ4, {{"chunk of 192 tokens, q4", 1, kChunk, 64}});
}

}  // namespace
}  // namespace polysketch
