// Devices whose thread blocks have 99 KB of shared memory (compute capability 8.6, 8.9 and 12.0):
// serving takes kernels that fit, training refuses what does not fit. Under the emulation only, which
// ends the program when a kernel asks for more than the limit.
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/cuda/bf16_error.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/training_case.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/attention_oracle.h"
#include "tests/simt/counts.h"
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
  void ExpectFastKernels(StateFormat format, const std::string& format_name);
};

// The kernels that run `run`.
template <typename Run>
std::set<std::string> KernelsOf(const Run& run) {
  simt::StartCounting();
  run();
  std::set<std::string> names;
  for (const simt::KernelCount& kernel : simt::StopCounting()) {
    names.insert(simt::KernelName(kernel.kernel));
  }
  return names;
}

bool HasName(const std::set<std::string>& names, const std::string& part) {
  return std::ranges::any_of(
      names, [&](const std::string& name) { return name.find(part) != std::string::npos; });
}

// The kernels of the paper's shape on devices of little and of much shared memory, and equal bits.
void SharedLimitTest::ExpectFastKernels(StateFormat format, const std::string& format_name) {
  Random random(4);
  AttentionSpec spec = testing::MakeSpec(AttentionKind::kLearnedSketchMixed, 2, 64, 32, 64);
  spec.state_format = format;
  constexpr int kTokens = 70;
  const Sequence sequence = testing::RandomSequence(spec, kTokens, &random);
  std::vector<std::vector<float>> out[2];
  for (const bool large : {false, true}) {
    simt::SetSharedLimit(large ? 227 << 10 : kLimit);
    CudaTest::SetUp();  // a backend of such a device
    // Four sequences, so that each multiprocessor has an item.
    std::vector<std::unique_ptr<testing::Runner>> runners;
    std::vector<testing::Part> whole, one;
    for (int i = 0; i < 4; ++i) {
      runners.push_back(std::make_unique<testing::Runner>(*cuda_, spec, sequence));
      whole.push_back({runners.back().get(), 66});
      one.push_back({runners.back().get(), 1});
    }
    const auto prompt = KernelsOf([&] { testing::Step(*cuda_, spec, whole); });
    EXPECT_TRUE(HasName(prompt, "WalkSegments<" + format_name)) << ::testing::PrintToString(prompt);
    EXPECT_TRUE(HasName(prompt, "AttendGroups"));
    const auto steps = KernelsOf([&] {
      for (int i = 66; i < kTokens; ++i) testing::Step(*cuda_, spec, one);
    });
    const char* stages = large ? "8" : "4";
    EXPECT_TRUE(HasName(steps, "AttendSteps<" + format_name + ", 64, false, false, " + stages))
        << ::testing::PrintToString(steps);
    EXPECT_FALSE(HasName(steps, "AttendParts"));
    out[large] = runners[0]->outputs;
    for (const auto& runner : runners) EXPECT_EQ(runner->outputs, out[large]);
  }
  for (size_t t = 0; t < out[1].size(); ++t) {
    for (size_t i = 0; i < out[1][t].size(); ++i) {
      ASSERT_EQ(out[0][t][i], out[1][t][i]) << "part " << t << " element " << i;
    }
  }
}

// The paper's shape has its fast kernels on such a device too: walks and warpgroups for prompts, and
// the ring of decoding steps with fewer stages. Its bits are those of a device with more memory.
TEST_F(SharedLimitTest, TheFastKernelsRunWhereTheyFit) {
  ExpectFastKernels(StateFormat::kBf16, "PlaneState");
  ExpectFastKernels(StateFormat::kQ8, "ByteState");
}

// Decoding steps of grouped queries take smaller tiles of heads there.
TEST_F(SharedLimitTest, GroupedQueriesDecodeInTheRing) {
  Random random(5);
  AttentionSpec spec = testing::MakeSpec(AttentionKind::kSoftmax, 8, 64, 0, 64);
  spec.kv_heads = 2;
  spec.state_format = StateFormat::kBf16;
  constexpr int kTokens = 70;
  const Sequence sequence = testing::RandomSequence(spec, kTokens, &random);
  const auto whole = testing::RunAlone(*cuda_, spec, sequence, {kTokens});
  testing::Runner runner(*cuda_, spec, sequence);
  testing::Step(*cuda_, spec, {{&runner, kTokens - 3}});
  const auto steps = KernelsOf([&] {
    for (int i = 0; i < 3; ++i) testing::Step(*cuda_, spec, {{&runner, 1}});
  });
  EXPECT_TRUE(HasName(steps, "AttendSteps<PlaneState, 64, false, false, 4"))
      << ::testing::PrintToString(steps);
  EXPECT_EQ(runner.outputs, whole);
}

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
