// models/demo on the cuda backend: in float32 the same greedy continuation as the cpu backend
// gives; with bf16 weights and states the perplexity of a text of its own within 1e-3 of the cpu's
// in float32, as far as the text's length can tell.
#include <cmath>
#include <string>
#include <vector>

#include "kernels/new_backend.h"
#include "tests/cuda/cuda_test.h"
#include "tests/engine/model/model_runner.h"
#include "tests/kernels/noisy.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

class CudaDemoTest : public testing::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (cuda_ == nullptr) return;
    auto cpu = NewCpuBackend(2);
    ASSERT_TRUE(cpu.ok()) << cpu.status().ToString();
    cpu_ = std::move(cpu).value();
  }
  static std::filesystem::path Folder() { return testing::SourceDir() / "models/demo"; }

  static std::vector<int32_t> Greedy(LanguageModel& model, std::vector<int32_t> tokens, int count) {
    testing::Request request(model, std::move(tokens));
    for (int i = 0; i < count; ++i) {
      request.logits.clear();
      testing::StepRequests(model, {{&request, request.left(), false}});
      request.tokens.push_back(testing::BestOf(request.logits).token);
    }
    return request.tokens;
  }

  // A text drawn from the model itself, at temperature 1.
  static std::vector<int32_t> DrawnText(LanguageModel& model, size_t length) {
    testing::Random random(5);
    testing::Request request(model, {101, 7, 350});
    while (request.tokens.size() < length) {
      request.logits.clear();
      testing::StepRequests(model, {{&request, request.left(), false}});
      float log_sum = 0;
      model.LogSumExp(request.logits.data(), 1, &log_sum);
      double left = random.Uniform(0, 1);
      int32_t token = 0;
      while (token + 1 < model.vocab_size()) {
        left -= std::exp(static_cast<double>(request.logits[token]) - log_sum);
        if (left < 0) break;
        ++token;
      }
      request.tokens.push_back(token);
    }
    return request.tokens;
  }

  // -log p of every token after the first.
  static std::vector<double> Losses(LanguageModel& model, const std::vector<int32_t>& tokens) {
    std::vector<double> losses;
    const int vocab = model.vocab_size();
    testing::Request request(model, tokens);
    for (size_t next = 1; request.left() > 1;) {
      const int rows = std::min(request.left() - 1, 256);
      request.logits.clear();
      testing::StepRequests(model, {{&request, rows}});
      std::vector<float> log_sums(rows);
      model.LogSumExp(request.logits.data(), rows, log_sums.data());
      for (int i = 0; i < rows; ++i, ++next) {
        losses.push_back(static_cast<double>(log_sums[i]) -
                         request.logits[i * vocab + tokens[next]]);
      }
    }
    return losses;
  }

  std::unique_ptr<Backend> cpu_;
};

TEST_F(CudaDemoTest, Float32ContinuationIsTheCpus) {
  const auto cuda = testing::LoadModel(Folder(), &cuda_->device());
  const auto cpu = testing::LoadModel(Folder(), cpu_.get());
  const std::vector<int32_t> prompt = {101, 7, 350, 22, 1200, 5, 77};
  const int count = Scale(3, 256);
  EXPECT_EQ(Greedy(*cuda, prompt, count), Greedy(*cpu, prompt, count));
}

TEST_F(CudaDemoTest, Bf16PerplexityIsClose) {
  const auto cpu = testing::LoadModel(Folder(), cpu_.get());
  LoadOptions options;
  options.weights = DataType::kBf16;
  options.state_format = StateFormat::kBf16;
  const auto cuda = testing::LoadModel(Folder(), &cuda_->device(), options);
  const size_t length = testing::Emulated() ? testing::Count(20, 2000) : 20000;
  const std::vector<int32_t> tokens = DrawnText(*cpu, length);
  const std::vector<double> want = Losses(*cpu, tokens), got = Losses(*cuda, tokens);
  const auto n = static_cast<double>(want.size());
  double mean = 0, squares = 0;
  for (size_t i = 0; i < want.size(); ++i) mean += (got[i] - want[i]) / n;
  for (size_t i = 0; i < want.size(); ++i) squares += testing::Square(got[i] - want[i] - mean);
  // The standard error of a mean of n losses.
  const double standard_error = std::sqrt(squares / (n - 1) / n);
  RecordProperty("relative", std::to_string(std::exp(mean) - 1));
  RecordProperty("standard_error", std::to_string(standard_error));
  EXPECT_NEAR(mean, 0, 1e-3 + 3 * standard_error);
}

}  // namespace
}  // namespace polysketch
