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

// The input of MixedSketchAttention without a decay gate. norms: scales and biases of queries and
// keys, of a head each.
MixedSketchInput SketchedInput(const std::vector<float>& qkv, const std::vector<int64_t>& positions,
                               const std::vector<float>& thetas, const std::vector<float>& norms,
                               const SketchNetwork& network, std::vector<float> (&scratch)[4]) {
  const float* of_head[4];
  for (size_t i = 0; i < 4; ++i) of_head[i] = &norms[i * norms.size() / 4];
  return {.qkv = qkv.data(),
          .positions = positions,
          .thetas = thetas,
          .near_q_norm = {of_head[0], of_head[1]},
          .near_k_norm = {of_head[2], of_head[3]},
          .network = &network,
          .qk = scratch[0].data(),
          .near_qk = scratch[1].data(),
          .sketch = scratch[2].data(),
          .attended = scratch[3].data()};
}

// learned_sketch_mixed from joint queries, keys and values on: queries and keys pass as bf16 too.
TEST_F(AttentionOutputTest, MixedSketchesHaveTheBitsOfTheirOps) {
  struct Case {
    int heads, head_dim, size, block, tokens;
    StateFormat format;
    bool gated;
  };
  const Case cases[] = {
      {2, 64, 32, 80, 170, StateFormat::kBf16, false},  // warpgroups
      {2, 64, 32, 80, 170, StateFormat::kBf16, true},
      {2, 64, 32, 80, 190, StateFormat::kBf16, false},  // and few rows in the last block
      {2, 32, 16, 40, 100, StateFormat::kBf16, false},  // few rows from the start of a block on
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
      for (const int rows : {c.tokens - 20, 1, 1, 15, 3}) {
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
        MixedSketchInput input =
            SketchedInput(qkv, positions, thetas, norms, net->network, scratch);
        if (c.gated) input.log_decay = log_decay.data();
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

// A step of one token of each of many sequences, at other positions: more heads than thread blocks
// take at once.
TEST_F(AttentionOutputTest, StepsOfManySequencesHaveTheBitsOfTheirOps) {
  constexpr int kSequences = 37, d = 32;
  Random random(7);
  AttentionSpec spec = testing::MakeSpec(AttentionKind::kLearnedSketchMixed, 2, d, 16, 8);
  spec.state_format = StateFormat::kBf16;
  const int width = 2 * d;
  const HostWeights weights(random.Normals(width * width), width, width, DataType::kBf16);
  const auto w = cuda_->PackMatrix(weights.matrix(), false, DataType::kBf16);
  const testing::NetworkWeights network(d, 16, DataType::kBf16, &random);
  const auto net = network.Pack(*cuda_, DataType::kBf16);
  const std::vector<float> norms = random.Normals(4 * d, 0.3, 1), thetas = RopeThetas(d);
  std::vector<std::unique_ptr<SequenceState>> states[2];
  for (auto& of_path : states) {
    for (int i = 0; i < kSequences; ++i) of_path.push_back(cuda_->NewState({&spec, 1}));
  }
  // Sequence i joins at step i % 5.
  for (int step = 0; step < 12; ++step) {
    std::vector<int> members;
    for (int i = 0; i < kSequences; ++i) {
      if (i % 5 <= step) members.push_back(i);
    }
    const auto rows = static_cast<int>(members.size());
    const std::vector<float> qkv = random.Normals(rows * 3 * width);
    std::vector<int64_t> positions;
    for (const int i : members) positions.push_back(states[0][i]->position());
    std::vector<float> scratch[4];
    for (auto& array : scratch) array.resize(static_cast<size_t>(2 * rows * width));
    const MixedSketchInput input =
        SketchedInput(qkv, positions, thetas, norms, net->network, scratch);
    std::vector<float> out[2];
    for (const bool fused : {false, true}) {
      std::vector<Segment> segments;
      for (const int i : members) {
        segments.push_back({states[fused][i].get(), static_cast<int>(std::ssize(segments)), 1});
      }
      out[fused].assign(static_cast<size_t>(rows * width), 0.5f);
      fused ? cuda_->MixedSketchAttention(spec, 0, segments, input, *w, out[1].data())
            : cuda_->Backend::MixedSketchAttention(spec, 0, segments, input, *w, out[0].data());
      for (const Segment& segment : segments) segment.state->Advance(1);
    }
    for (size_t i = 0; i < out[0].size(); ++i) {
      ASSERT_EQ(out[1][i], out[0][i]) << "step " << step << ", element " << i;
    }
  }
}

// Kinds that compare heads themselves, from joint queries, keys and values on.
TEST_F(AttentionOutputTest, HeadsHaveTheBitsOfTheirOps) {
  struct Case {
    AttentionKind kind;
    int heads, kv_heads, head_dim, block;
    StateFormat format;
    bool normed, rotated, gated;
  };
  const Case cases[] = {
      {AttentionKind::kSoftmax, 4, 2, 32, 24, StateFormat::kBf16, false, true, false},
      {AttentionKind::kSoftmax, 2, 1, 128, 8, StateFormat::kBf16, true, true, false},
      {AttentionKind::kSoftmax, 2, 2, 6, 8, StateFormat::kBf16, true, false, false},
      {AttentionKind::kSoftmax, 2, 2, 64, 8, StateFormat::kF32, true, true, false},
      {AttentionKind::kPolynomial, 2, 1, 32, 8, StateFormat::kF32, false, false, false},
      {AttentionKind::kSymmetricPower, 4, 2, 16, 8, StateFormat::kBf16, true, true, true},
      {AttentionKind::kSymmetricPower, 2, 1, 32, 8, StateFormat::kF32, false, true, false},
  };
  Random random(8);
  for (const Case& c : cases) {
    AttentionSpec spec = testing::MakeSpec(c.kind, c.heads, c.head_dim, c.head_dim, c.block);
    spec.kv_heads = c.kv_heads;
    spec.state_format = c.format;
    spec.decay_gate = c.gated;
    const HeadShape shape = spec.shape();
    const int d = c.head_dim, in = c.heads * d, out_width = 20;
    const HostWeights weights(random.Normals(in * out_width), in, out_width, DataType::kBf16);
    const auto w = cuda_->PackMatrix(weights.matrix(), false, DataType::kBf16);
    const std::vector<float> norms = random.Normals(2 * d, 0.3, 1),
                             bias = random.Normals(out_width);
    HeadNorms of_heads;
    if (c.normed) {
      of_heads = {{&norms[0], nullptr, NormKind::kRms}, {&norms[d], nullptr, NormKind::kRms}, true};
    }
    std::vector<float> thetas;
    if (c.rotated) thetas = RopeThetas(d);
    const std::unique_ptr<SequenceState> states[] = {cuda_->NewState({&spec, 1}),
                                                     cuda_->NewState({&spec, 1})};
    for (const int rows : {7, 1, 1, 9, 1}) {
      const std::vector<float> qkv = random.Normals(rows * shape.row());
      std::vector<float> log_decay = random.Normals(rows * shape.kv_heads, 0.1);
      for (float& x : log_decay) x = -std::abs(x);
      std::vector<int64_t> positions(static_cast<size_t>(rows));
      std::iota(positions.begin(), positions.end(), states[0]->position());
      std::vector<float> qk(static_cast<size_t>(rows * (shape.q_row() + shape.k_row())));
      std::vector<float> attended(static_cast<size_t>(rows * in));
      const HeadInput input{.qkv = qkv.data(),
                            .positions = positions,
                            .thetas = thetas,
                            .norms = of_heads,
                            .log_decay = c.gated ? log_decay.data() : nullptr,
                            .qk = qk.data(),
                            .attended = attended.data()};
      const float* added = rows == 9 || c.gated ? bias.data() : nullptr;
      std::vector<float> out[2];
      for (const bool fused : {false, true}) {
        const Segment segment{states[fused].get(), 0, rows};
        out[fused].assign(static_cast<size_t>(rows * out_width), 0.5f);
        fused ? cuda_->HeadAttention(spec, 0, {&segment, 1}, input, *w, added, out[1].data())
              : cuda_->Backend::HeadAttention(spec, 0, {&segment, 1}, input, *w, added,
                                              out[0].data());
        segment.state->Advance(rows);
      }
      for (size_t i = 0; i < out[0].size(); ++i) {
        ASSERT_EQ(out[1][i], out[0][i])
            << testing::Describe(spec) << ", " << rows << " rows, element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace polysketch
