// Models of kind symmetric_power are those of kind polynomial with degree two, on every backend.
#include <gtest/gtest.h>

#include "tests/engine/model/recurrent_twin.h"
#include "tests/testing/backend_test.h"

namespace polysketch {
namespace {

class SymmetricPowerTest : public testing::BackendTest {};

TEST_P(SymmetricPowerTest, LogitsOfAnySplitAreThoseOfThePolynomial) {
  const auto backend = NewBackend(1);
  testing::ExpectLogitsOfTheCachedKind(testing::TinyConfig(AttentionKind::kSymmetricPower),
                                       AttentionKind::kPolynomial, backend.get());
}

INSTANTIATE_TEST_SUITE_P(Backends, SymmetricPowerTest, ::testing::ValuesIn(testing::AllBackends()),
                         testing::ParamName);

}  // namespace
}  // namespace polysketch
