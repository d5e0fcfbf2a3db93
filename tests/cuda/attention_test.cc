// The general attention kernels (float32 states, any shape) against the definition, with the
// tolerances of kernels/cpu; and the same bits under every split.
#include <cstring>
#include <vector>

#include "tests/cuda/cuda_test.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/attention_oracle.h"

namespace polysketch {
namespace {

using testing::Random;
using testing::Sequence;

class CudaAttentionTest : public testing::CudaTest {};

struct Shape {
  int heads, head_dim, size, block, tokens;
};

TEST_F(CudaAttentionTest, IsItsDefinition) {
  Random random(1);
  for (const AttentionKind kind : testing::kAllKinds) {
    for (const Shape& shape : {Shape{1, 7, 5, 1, 5}, Shape{2, 10, 8, 3, 11},
                               Shape{1, 6, 12, 16, 37}, Shape{2, 33, 11, 8, 27}}) {
      const AttentionSpec ungated =
          testing::MakeSpec(kind, shape.heads, shape.head_dim, shape.size, shape.block);
      for (const AttentionSpec& spec : testing::WithDecayGates({ungated})) {
        const Sequence sequence = testing::RandomSequence(spec, shape.tokens, &random);
        const testing::OracleOutput want =
            testing::AttentionOracle(spec, sequence.layers[0], shape.tokens);
        const auto out = testing::RunAlone(*cuda_, spec, sequence, {shape.tokens});
        for (size_t i = 0; i < want.value.size(); ++i) {
          ASSERT_NEAR(out[0][i], want.value[i], want.tolerance[i])
              << testing::Describe(spec) << " element " << i;
        }
      }
    }
  }
}

TEST_F(CudaAttentionTest, AnySplitAnyNeighbour) {
  Random random(2);
  for (const AttentionKind kind : testing::kAllKinds) {
    const AttentionSpec exact = testing::MakeSpec(kind, 2, 10, 11, 8);
    AttentionSpec narrow = exact, bytes = exact;
    narrow.state_format = StateFormat::kBf16;
    bytes.state_format = StateFormat::kQ8;
    for (const testing::Layers& spec :
         testing::InLayers(testing::WithDecayGates({exact, narrow, bytes}), 2)) {
      const Sequence sequence = testing::RandomSequence(spec, 29, &random);
      const Sequence other = testing::RandomSequence(spec, 29, &random);
      const auto whole = testing::RunAlone(*cuda_, spec, sequence, {29});
      for (int i = 0; i < Scale(3, 50); ++i) {
        testing::SeedSchedule(i);
        const std::vector<int> parts = random.Split(29);
        testing::Runner mine(*cuda_, spec, sequence), its(*cuda_, spec, other);
        for (const int rows : parts) {
          const int left = 29 - static_cast<int>(its.state->position());
          const int beside = std::min<int>(left, static_cast<int>(random.Int(0, 9)));
          std::vector<testing::Part> step = {{&mine, rows}};
          if (beside > 0) step.insert(step.begin() + random.Int(0, 1), {&its, beside});
          testing::Step(*cuda_, spec, step);
        }
        ASSERT_EQ(mine.outputs, whole)
            << testing::Describe(spec) << " split " << ::testing::PrintToString(parts);
      }
    }
  }
}

}  // namespace
}  // namespace polysketch
