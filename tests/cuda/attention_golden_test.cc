// tests/engine/model/attention_golden.h for the general kernels.
#include "tests/engine/model/attention_golden.h"
#include "tests/cuda/cuda_test.h"

namespace polysketch {
namespace {

using CudaAttentionGoldenTest = testing::CudaTest;

TEST_F(CudaAttentionGoldenTest, Polynomial) { testing::ExpectPolynomial(*cuda_); }
TEST_F(CudaAttentionGoldenTest, Squared) { testing::ExpectSquared(*cuda_); }
TEST_F(CudaAttentionGoldenTest, Mixed) { testing::ExpectMixed(*cuda_); }
TEST_F(CudaAttentionGoldenTest, RandomSketch) { testing::ExpectRandomSketch(*cuda_); }
TEST_F(CudaAttentionGoldenTest, DecayGate) { testing::ExpectDecayGate(*cuda_); }
TEST_F(CudaAttentionGoldenTest, PolynomialSquare) { testing::ExpectPolynomialSquare(*cuda_); }
TEST_F(CudaAttentionGoldenTest, RandomSketchMixedIsItsParts) {
  testing::ExpectRandomSketchMixedIsItsParts(*cuda_);
}

}  // namespace
}  // namespace polysketch
