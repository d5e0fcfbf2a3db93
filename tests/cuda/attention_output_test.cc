// Fused ops of attention, whose rows pass between kernels as 16-bit floats: the bits of the ops that
// they consist of, for the kernels of every path.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/angles.h"
#include "tests/cuda/cuda_test.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/weights.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::HostWeights;
using testing::Random;
using testing::Sequence;

class AttentionOutputTest : public testing::CudaTest {
 protected:
  // x += Attention w for rows x of 0.5, by one op and by two.
  std::vector<std::vector<float>> Run(const AttentionSpec& spec, const Sequence& sequence,
                                      const std::vector<int>& parts, const Matrix& w, bool fused) {
    const int64_t width = w.in();
    return testing::RunAlone(
        *cuda_, spec, sequence, parts,
        [&](int layer, std::span<const Segment> segments, const AttentionInput& input, float* x) {
          const int64_t rows = segments[0].rows;
          std::fill_n(x, rows * width, 0.5f);
          std::vector<float> attended(static_cast<size_t>(rows * width));
          if (fused) {
            cuda_->AttentionMatMul(spec, layer, segments, input, rows, w, attended.data(), x);
          } else {
            cuda_->Attention(spec, layer, segments, input, attended.data());
            cuda_->MatMul(attended.data(), rows, w, nullptr, /*accumulate=*/true, x);
          }
        });
  }
};

TEST_F(AttentionOutputTest, OneOpHasTheBitsOfTwo) {
  struct Case {
    AttentionKind kind;
    int heads, head_dim, size, block, tokens;
    StateFormat format;
  };
  const Case cases[] = {
      {AttentionKind::kLearnedSketchMixed, 1, 64, 32, 80, 170, StateFormat::kBf16},  // warpgroups
      {AttentionKind::kLearnedSketchMixed, 2, 32, 16, 40, 101, StateFormat::kBf16},
      {AttentionKind::kLearnedSketchMixed, 1, 128, 16, 24, 60, StateFormat::kBf16},
      {AttentionKind::kSoftmax, 2, 32, 0, 24, 60, StateFormat::kBf16},
      {AttentionKind::kPolynomialSquare, 2, 32, 0, 24, 60, StateFormat::kBf16},
      {AttentionKind::kLearnedSketch, 2, 24, 16, 20, 50, StateFormat::kF32},
      {AttentionKind::kLearnedSketch, 2, 32, 16, 20, 50, StateFormat::kF32},
  };
  Random random(5);
  for (const Case& c : cases) {
    AttentionSpec spec = testing::MakeSpec(c.kind, c.heads, c.head_dim, c.size, c.block);
    spec.state_format = c.format;
    const Sequence sequence = testing::RandomSequence(spec, c.tokens, &random);
    const int width = c.heads * c.head_dim;  // one is no multiple of what a product reads at a time
    for (const DataType type : {DataType::kBf16, DataType::kF16, DataType::kF32}) {
      const HostWeights weights(random.Normals(width * width), width, width, type);
      const auto w = cuda_->PackMatrix(weights.matrix(), false, type);
      // Many rows, then few.
      for (const std::vector<int>& parts :
           {std::vector<int>{c.tokens}, std::vector<int>{c.tokens - 20, 1, 16, 3}}) {
        const auto one = Run(spec, sequence, parts, *w, true);
        const auto two = Run(spec, sequence, parts, *w, false);
        for (size_t i = 0; i < two[0].size(); ++i) {
          ASSERT_EQ(one[0][i], two[0][i])
              << testing::Describe(spec) << " " << DataTypeName(type) << " element " << i;
        }
      }
    }
  }
}

// learned_sketch_mixed from joint queries, keys and values on: queries and keys pass as bf16 too.
TEST_F(AttentionOutputTest, MixedSketchesHaveTheBitsOfTheirOps) {
  struct Case {
    int heads, head_dim, size, block, tokens;
    StateFormat format;
    bool gated;
  };
  const Case cases[] = {
      {1, 64, 32, 80, 170, StateFormat::kBf16, false},  // warpgroups
      {1, 64, 32, 80, 170, StateFormat::kBf16, true},
      {2, 32, 16, 40, 101, StateFormat::kBf16, false},
      {1, 128, 16, 24, 60, StateFormat::kBf16, false},
      {1, 32, 8, 24, 60, StateFormat::kBf16, false},
      {2, 32, 16, 24, 60, StateFormat::kF32, false},
  };
  Random random(6);
  for (const Case& c : cases) {
    AttentionSpec spec =
        testing::MakeSpec(AttentionKind::kLearnedSketchMixed, c.heads, c.head_dim, c.size, c.block);
    spec.state_format = c.format;
    spec.decay_gate = c.gated;
    const int width = c.heads * c.head_dim, d = c.head_dim;
    for (const DataType type : {DataType::kBf16, DataType::kF16, DataType::kF32}) {
      const HostWeights weights(random.Normals(width * width), width, width, type);
      const auto w = cuda_->PackMatrix(weights.matrix(), false, type);
      const testing::NetworkWeights network(d, c.size, type, &random);
      const auto net = network.Pack(*cuda_, type);
      const std::vector<float> norms = random.Normals(4 * d, 0.3, 1);
      const std::unique_ptr<SequenceState> states[] = {cuda_->NewState({&spec, 1}),
                                                       cuda_->NewState({&spec, 1})};
      // Many rows, then few.
      for (const int rows : {c.tokens - 20, 1, 16, 3}) {
        const std::vector<float> qkv = random.Normals(rows * 3 * width);
        std::vector<float> log_decay = random.Normals(rows * c.heads, 0.1);
        for (float& x : log_decay) x = -std::abs(x);
        std::vector<int64_t> positions(static_cast<size_t>(rows));
        std::iota(positions.begin(), positions.end(), states[0]->position());
        std::vector<float> scratch[4];
        for (auto& array : scratch) {
          array.resize(static_cast<size_t>(2 * rows * c.heads * std::max(d, spec.far_dim())));
        }
        const std::vector<float> thetas = RopeThetas(d);
        const MixedSketchInput input{.qkv = qkv.data(),
                                     .positions = positions,
                                     .thetas = thetas,
                                     .near_q_norm = {&norms[0], &norms[d]},
                                     .near_k_norm = {&norms[2 * d], &norms[3 * d]},
                                     .network = &net->network,
                                     .log_decay = c.gated ? log_decay.data() : nullptr,
                                     .qk = scratch[0].data(),
                                     .near_qk = scratch[1].data(),
                                     .sketch = scratch[2].data(),
                                     .attended = scratch[3].data()};
        std::vector<float> out[2];
        for (const bool fused : {false, true}) {
          SequenceState& state = *states[fused];
          const Segment segment{&state, 0, rows};
          out[fused].assign(static_cast<size_t>(rows * width), 0.5f);
          fused ? cuda_->MixedSketchAttention(spec, 0, {&segment, 1}, input, *w, out[1].data())
                : cuda_->Backend::MixedSketchAttention(spec, 0, {&segment, 1}, input, *w,
                                                       out[0].data());
          state.Advance(rows);
        }
        for (size_t i = 0; i < out[0].size(); ++i) {
          ASSERT_EQ(out[1][i], out[0][i]) << testing::Describe(spec) << " " << DataTypeName(type)
                                          << ", " << rows << " rows, element " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace polysketch
