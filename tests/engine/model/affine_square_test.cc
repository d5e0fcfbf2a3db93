// Models of kind affine_square are those of kind polynomial_square with degree one, on every
// backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/engine/model/model_runner.h"
#include "tests/testing/backend_test.h"
#include "tests/testing/random.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

class AffineSquareTest : public testing::BackendTest {
 protected:
  void ExpectLogitsOfThePolynomial(bool head_coefficients) {
    constexpr int kTokens = 50;  // six blocks and a part
    const auto backend = NewBackend(1);
    testing::Random random(2);
    ModelConfig config = testing::TinyConfig(AttentionKind::kAffineSquare);
    config.head_coefficients = head_coefficients;
    const testing::TemporaryFolder recurrent, cached;
    testing::WriteRandomModel(recurrent.path(), config, DataType::kF32, 5);
    config.attention = AttentionKind::kPolynomialSquare;  // its tensors are the same
    testing::WriteRandomModel(cached.path(), config, DataType::kF32, 5);
    std::vector<int32_t> tokens(kTokens);
    for (int32_t& token : tokens)
      token = static_cast<int32_t>(random.Int(0, config.vocab_size - 1));

    const auto model = testing::LoadModel(recurrent.path(), backend.get());
    EXPECT_FALSE(model->attention_spec().kv_cache());
    const std::vector<float> want =
        testing::LogitsOf(*testing::LoadModel(cached.path(), backend.get()), tokens, {kTokens});
    double largest = 0;
    for (const float logit : want) largest = std::max<double>(largest, std::abs(logit));
    for (const std::vector<int>& parts :
         {std::vector<int>{kTokens}, std::vector<int>(kTokens, 1), random.Split(kTokens)}) {
      const std::vector<float> got = testing::LogitsOf(*model, tokens, parts);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 2e-4 * largest) << i;  // the tolerance of golden_test.cc
    }
  }
};

TEST_P(AffineSquareTest, LogitsOfAnySplitAreThoseOfThePolynomial) {
  ExpectLogitsOfThePolynomial(/*head_coefficients=*/false);
}
TEST_P(AffineSquareTest, EachHeadMayHaveItsCoefficients) {
  ExpectLogitsOfThePolynomial(/*head_coefficients=*/true);
}

INSTANTIATE_TEST_SUITE_P(Backends, AffineSquareTest, ::testing::ValuesIn(testing::AllBackends()),
                         testing::ParamName);

}  // namespace
}  // namespace polysketch
