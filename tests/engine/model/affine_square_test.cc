// Models of kind affine_square are those of kind polynomial_square with degree one, on every
// backend.
#include <gtest/gtest.h>

#include "tests/engine/model/recurrent_twin.h"
#include "tests/testing/backend_test.h"

namespace polysketch {
namespace {

class AffineSquareTest : public testing::BackendTest {
 protected:
  void ExpectLogitsOfThePolynomial(bool head_coefficients) {
    const auto backend = NewBackend(1);
    ModelConfig config = testing::TinyConfig(AttentionKind::kAffineSquare);
    config.head_coefficients = head_coefficients;
    testing::ExpectLogitsOfTheCachedKind(config, AttentionKind::kPolynomialSquare, backend.get());
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
