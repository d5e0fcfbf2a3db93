// Models with and without sinusoidal positions, on every backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/engine/model/model_runner.h"
#include "tests/testing/backend_test.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

constexpr int kLength = 40;

class PositionsTest : public testing::BackendTest {
 protected:
  // The largest difference between the logits of the first token and of a later one, in a text of
  // one token that is repeated, divided by the largest logit.
  double DifferenceByPosition(bool sinusoids) {
    ModelConfig config = testing::TinyConfig(AttentionKind::kSoftmax);
    config.sinusoidal_positions = sinusoids;
    const testing::TemporaryFolder folder;
    testing::WriteRandomModel(folder.path(), config, DataType::kF32, 5);
    const auto backend = NewBackend(1);
    const auto model = testing::LoadModel(folder.path(), backend.get());
    const std::vector<float> logits =
        testing::LogitsOf(*model, std::vector<int32_t>(kLength, 7), {kLength});
    double difference = 0, largest = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const float first = logits[i % static_cast<size_t>(config.vocab_size)];
      difference = std::max(difference, std::abs(static_cast<double>(logits[i]) - first));
      largest = std::max(largest, std::abs(static_cast<double>(logits[i])));
    }
    return difference / largest;
  }
};

// softmax averages the values, which are equal at all positions if only RoPE, which leaves them as
// they are, tells positions apart. A sum of 40 equal values, and its division by the sum of 40
// weights, is off by 80 roundings; norms and products of two layers make some of them larger.
TEST_P(PositionsTest, WithoutSinusoidsARepeatedTokenIsTheSameEverywhere) {
  EXPECT_LT(DifferenceByPosition(false), 1024 * 0x1p-24);
  EXPECT_GT(DifferenceByPosition(true), 0.01);
}

INSTANTIATE_TEST_SUITE_P(Backends, PositionsTest, ::testing::ValuesIn(testing::AllBackends()),
                         testing::ParamName);

}  // namespace
}  // namespace polysketch
