// Devices whose thread blocks have 99 KB of shared memory (compute capability 8.6 and 8.9): serving
// takes kernels that fit, training refuses what does not fit. Under the emulation only, which ends
// the program when a kernel asks for more than the limit.
#include <string>
#include <vector>

#include "tests/cuda/bf16_error.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/training_case.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/attention_oracle.h"
#include "tests/simt/simt.h"

namespace polysketch {
namespace {

using testing::Random;
using testing::Sequence;

constexpr size_t kLimit = 99 << 10;

class SharedLimitTest : public testing::CudaTest {
 protected:
  void SetUp() override {
    simt::SetSharedLimit(kLimit);
    CudaTest::SetUp();
  }
  void TearDown() override {
    CudaTest::TearDown();
    simt::SetSharedLimit(227 << 10);
  }
};

TEST_F(SharedLimitTest, EveryKindIsItsDefinition) {
  Random random(1);
  constexpr int kTokens = 85;  // more rows of a block than decoding has
  for (const AttentionKind kind : testing::kAllKinds) {
    for (const auto& [head_dim, size] : {std::pair{64, 32}, {64, 64}, {64, 128}, {128, 64}}) {
      if (size > 64 && kind != AttentionKind::kPerformer) continue;
      AttentionSpec ungated = testing::MakeSpec(kind, 1, head_dim, size, 40);
      ungated.state_format = StateFormat::kBf16;
      for (const AttentionSpec& spec : testing::WithDecayGates({ungated})) {
        const Sequence sequence = testing::RandomSequence(spec, kTokens, &random);
        const testing::OracleOutput want =
            testing::AttentionOracle(spec, sequence.layers[0], kTokens);
        const std::vector<double> tolerance =
            testing::Bf16Tolerance(spec, sequence.layers[0], kTokens, want);
        const auto out = testing::RunAlone(*cuda_, spec, sequence, {kTokens});
        for (size_t i = 0; i < want.value.size(); ++i) {
          ASSERT_NEAR(out[0][i], want.value[i], tolerance[i])
              << testing::Describe(spec) << " element " << i;
        }
        EXPECT_EQ(testing::RunAlone(*cuda_, spec, sequence, {50, 1, 1, 32, 1}), out)
            << testing::Describe(spec);
      }
    }
  }
}

// 300 tokens of the mixed form in blocks of 64.
polysketch_attention_shape Training(int head_dim) {
  return {1, 1, 300, head_dim, 64, 32, 4, 64, 1.0f, POLYSKETCH_BF16, 0, 0, 2};
}

TEST_F(SharedLimitTest, TrainingRefusesWhatDoesNotFit) {
  const polysketch_attention_shape shape = Training(64);
  size_t forward = 0, backward = 0;
  EXPECT_EQ(polysketch_attention_workspace(&shape, &forward, nullptr), POLYSKETCH_ATTENTION_OK);
  EXPECT_EQ(polysketch_attention_workspace(&shape, &forward, &backward),
            POLYSKETCH_ATTENTION_UNSUPPORTED);
  const std::string message = polysketch_attention_error();
  EXPECT_NE(message.find("bytes of shared memory for a thread block (backward pass, head_dim 64, "
                         "near_dim 64, sketch_dim 32), found 101376"),
            std::string::npos)
      << message;
  simt::SetSharedLimit(227 << 10);
  EXPECT_EQ(polysketch_attention_workspace(&shape, &forward, &backward), POLYSKETCH_ATTENTION_OK);
}

TEST_F(SharedLimitTest, TrainingRunsWhatFits) {
  Random random(2);
  polysketch_attention_shape shape = Training(32);
  shape.near_dim = 32;
  shape.sketch_dim = 16;
  const auto problem = testing::RandomProblem(shape, &random);
  const testing::TrainingResult small = testing::RunTraining(problem);
  simt::SetSharedLimit(227 << 10);
  const testing::TrainingResult large = testing::RunTraining(problem);
  EXPECT_EQ(small.out, large.out);
  EXPECT_EQ(small.far_k, large.far_k);
}

}  // namespace
}  // namespace polysketch
