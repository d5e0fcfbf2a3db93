// tests/engine/model/attention_golden.h for every backend of the host.
#include "tests/engine/model/attention_golden.h"
#include "tests/testing/backend_test.h"

namespace polysketch {
namespace {

class AttentionGoldenTest : public testing::BackendTest {};

TEST_P(AttentionGoldenTest, Polynomial) { testing::ExpectPolynomial(*NewBackend(1)); }
TEST_P(AttentionGoldenTest, Squared) { testing::ExpectSquared(*NewBackend(1)); }
TEST_P(AttentionGoldenTest, Mixed) { testing::ExpectMixed(*NewBackend(1)); }
TEST_P(AttentionGoldenTest, RandomSketch) { testing::ExpectRandomSketch(*NewBackend(1)); }
TEST_P(AttentionGoldenTest, DecayGate) { testing::ExpectDecayGate(*NewBackend(1)); }
TEST_P(AttentionGoldenTest, PolynomialSquare) { testing::ExpectPolynomialSquare(*NewBackend(1)); }
TEST_P(AttentionGoldenTest, RandomSketchMixedIsItsParts) {
  testing::ExpectRandomSketchMixedIsItsParts(*NewBackend(1));
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionGoldenTest, ::testing::ValuesIn(testing::AllBackends()),
                         testing::ParamName);

}  // namespace
}  // namespace polysketch
