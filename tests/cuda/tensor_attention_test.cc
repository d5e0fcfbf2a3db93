// The tensor core attention kernels (states of bf16 and of 8-bit numbers): against the definition within what bf16 operands
// may change, and the same bits under every split, every neighbour and every schedule of the
// emulation.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/bf16_error.h"
#include "tests/cuda/cuda_test.h"
#include "tests/kernels/attention_case.h"

namespace polysketch {
namespace {

using testing::Random;
using testing::Sequence;

struct Shape {
  int heads, head_dim, size, block, tokens;
};

AttentionSpec Bf16Spec(AttentionKind kind, const Shape& shape) {
  AttentionSpec spec =
      testing::MakeSpec(kind, shape.heads, shape.head_dim, shape.size, shape.block);
  spec.state_format = StateFormat::kBf16;
  return spec;
}

// The spec, and the same of 8-bit numbers.
std::vector<AttentionSpec> BothFormats(const AttentionSpec& spec) {
  AttentionSpec bytes = spec;
  bytes.state_format = StateFormat::kQ8;
  return {spec, bytes};
}

class TensorAttentionTest : public testing::CudaTest {
 protected:
  // Without a decay gate and with one, of both formats.
  void ExpectDefinitions(const AttentionSpec& ungated, int tokens, Random* random) {
    for (const AttentionSpec& spec : testing::WithDecayGates(BothFormats(ungated))) {
      ExpectDefinition(spec, tokens, random);
    }
  }

  void ExpectDefinition(const AttentionSpec& spec, int tokens, Random* random) {
    testing::ExpectBf16Definition(*cuda_, spec, tokens, random);
  }

  // The outputs of a sequence in the given parts, with rows of another one beside it.
  std::vector<std::vector<float>> RunBeside(const AttentionSpec& spec, const Sequence& sequence,
                                            const std::vector<int>& parts, Random* random) {
    const Sequence other = testing::RandomSequence(spec, sequence.tokens, random);
    testing::Runner mine(*cuda_, spec, sequence), its(*cuda_, spec, other);
    for (const int rows : parts) {
      const int left = sequence.tokens - static_cast<int>(its.state->position());
      const int beside = std::min<int>(left, static_cast<int>(random->Int(0, 30)));
      std::vector<testing::Part> step = {{&mine, rows}};
      if (beside > 0) step.insert(step.begin() + random->Int(0, 1), {&its, beside});
      testing::Step(*cuda_, spec, step);
    }
    return mine.outputs;
  }

  // Token t of a sequence of one head and layer, alone.
  static Sequence TokenOf(const Sequence& sequence, int t) {
    const auto cut = [&](const std::vector<float>& rows) {
      const int64_t width = std::ssize(rows) / sequence.tokens;
      return std::vector<float>(rows.begin() + t * width, rows.begin() + (t + 1) * width);
    };
    const testing::AttentionRows& rows = sequence.layers[0];
    return {1,
            {{cut(rows.near_q), cut(rows.near_k), cut(rows.far_q), cut(rows.far_k), cut(rows.v)}}};
  }
};

TEST_F(TensorAttentionTest, EveryKindIsItsDefinition) {
  Random random(1);
  for (const AttentionKind kind : testing::kAllKinds) {
    for (const Shape& shape : {Shape{2, 32, 16, 16, 55}, Shape{1, 64, 32, 32, 75}}) {
      ExpectDefinitions(Bf16Spec(kind, shape), shape.tokens, &random);
    }
  }
}

// Sketches of 8 to 64, heads of 128, blocks longer than a part and not multiples of one.
TEST_F(TensorAttentionTest, EveryShapeIsItsDefinition) {
  Random random(2);
  std::vector<Shape> shapes = {{1, 32, 8, 20, 70},
                               {1, 32, 24, 80, 170},
                               {1, 32, 64, 16, 40},
                               {1, 128, 16, 24, 60},
                               {1, 64, 32, 96, 200}};
  if (!testing::Emulated()) shapes.push_back({4, 64, 32, 256, 1500});
  for (const Shape& shape : shapes) {
    ExpectDefinitions(Bf16Spec(AttentionKind::kLearnedSketchMixed, shape), shape.tokens, &random);
  }
  // Blocks of whole parts and of others, tiles of rows that have all of a part, some of it and nothing.
  for (const Shape& shape :
       {Shape{1, 64, 0, 80, 200}, Shape{2, 32, 0, 64, 150}, Shape{1, 128, 0, 136, 300}}) {
    for (const AttentionSpec& spec : BothFormats(Bf16Spec(AttentionKind::kSoftmax, shape))) {
      ExpectDefinition(spec, shape.tokens, &random);
    }
  }
}

TEST_F(TensorAttentionTest, AnySplitAnyNeighbourAnySchedule) {
  Random random(3);
  const std::pair<AttentionKind, Shape> cases[] = {
      {AttentionKind::kLearnedSketchMixed, {2, 32, 16, 40, 101}},
      // Warpgroups: near keys of 64 and of 32 columns, an odd number of pairs of tiles.
      {AttentionKind::kLearnedSketchMixed, {1, 64, 32, 80, 290}},
      {AttentionKind::kLearnedSketch, {1, 64, 32, 24, 70}},
      // Many blocks, which the warpgroups of a walk take in turn.
      {AttentionKind::kLearnedSketchMixed, {1, 64, 8, 20, 170}},
      {AttentionKind::kLearnedSketchMixed, {1, 64, 16, 136, 300}},
      {AttentionKind::kRandomSketch, {1, 32, 16, 16, 53}},
      {AttentionKind::kPerformer, {1, 32, 16, 16, 53}},
      {AttentionKind::kSoftmax, {1, 32, 0, 24, 90}},
      {AttentionKind::kSoftmax, {1, 64, 0, 136, 300}},
      {AttentionKind::kSoftmax, {1, 128, 0, 136, 150}},
      {AttentionKind::kPolynomial, {1, 32, 0, 24, 60}},
      {AttentionKind::kPolynomialSquare, {2, 32, 0, 24, 60}},
      {AttentionKind::kAffineSquare, {1, 32, 0, 24, 60}},
  };
  for (const auto& [kind, shape] : cases) {
    for (const AttentionSpec& spec : testing::WithDecayGates(BothFormats(Bf16Spec(kind, shape)))) {
      const Sequence sequence = testing::RandomSequence(spec, shape.tokens, &random);
      const auto whole = testing::RunAlone(*cuda_, spec, sequence, {shape.tokens});
      EXPECT_EQ(testing::RunAlone(*cuda_, spec, sequence, std::vector<int>(shape.tokens, 1)), whole)
          << testing::Describe(spec) << " token by token";
      for (int i = 0; i < Scale(3, 50); ++i) {
        testing::SeedSchedule(100 + i);
        const std::vector<int> parts = random.Split(shape.tokens);
        const auto outputs = RunBeside(spec, sequence, parts, &random);
        for (size_t e = 0; e < whole[0].size(); ++e) {
          ASSERT_EQ(outputs[0][e], whole[0][e])
              << testing::Describe(spec) << " split " << ::testing::PrintToString(parts)
              << " element " << e;
        }
      }
    }
  }
}

// What decodes token by token below, with the number of tokens.
std::vector<std::pair<AttentionSpec, int>> DecodingCases() {
  std::vector<std::pair<AttentionSpec, int>> cases;
  const auto add = [&](AttentionKind kind, const Shape& shape, const auto& change) {
    AttentionSpec changed = Bf16Spec(kind, shape);
    change(&changed);
    for (const AttentionSpec& spec : testing::WithDecayGates(BothFormats(changed))) {
      cases.emplace_back(spec, shape.tokens);
    }
  };
  const auto grouped = [](int kv_heads) {
    return [kv_heads](AttentionSpec* spec) { spec->kv_heads = kv_heads; };
  };
  const auto none = [](AttentionSpec*) {};
  add(AttentionKind::kLearnedSketchMixed, {2, 32, 16, 40, 101}, none);
  add(AttentionKind::kLearnedSketchMixed, {1, 64, 32, 136, 300}, none);
  add(AttentionKind::kLearnedSketch, {1, 64, 24, 24, 70}, none);
  add(AttentionKind::kPerformer, {1, 32, 16, 16, 53}, none);
  add(AttentionKind::kSoftmax, {1, 32, 0, 24, 90}, none);
  add(AttentionKind::kPolynomial, {3, 64, 0, 80, 100}, none);
  // Tiles of four heads and of three; of three, with a gate and with a far part beside a window.
  add(AttentionKind::kSoftmax, {7, 64, 0, 32, 70}, grouped(1));
  add(AttentionKind::kLearnedSketchMixed, {6, 32, 16, 24, 60}, grouped(2));
  add(AttentionKind::kSoftmax, {6, 32, 0, 24, 120}, [](AttentionSpec* spec) {
    spec->kv_heads = 2;
    spec->window = 24;
    spec->window_kind = WindowKind::kBlocks;
    spec->sinks = 3;
    spec->far_size = 16;
    spec->far_length = 60;
    spec->decay_gate = true;
  });
  return cases;
}

// Decoding of many sequences, which has a kernel of its own: sequences at other positions, of which one
// ends early, with the bits of each alone.
TEST_F(TensorAttentionTest, TokenByTokenBesideManySequences) {
  Random random(5);
  const int sequences = testing::Emulated() ? 5 : 150;
  for (const auto& [spec, tokens] : DecodingCases()) {
    std::vector<Sequence> all;
    for (int i = 0; i < sequences; ++i) {
      all.push_back(testing::RandomSequence(spec, tokens, &random));
    }
    std::vector<std::unique_ptr<testing::Runner>> runners;
    for (int i = 0; i < sequences; ++i) {
      runners.push_back(std::make_unique<testing::Runner>(*cuda_, spec, all[i]));
      testing::Step(*cuda_, spec, {{runners[i].get(), tokens - 12 - 7 * i % 40}});
    }
    for (int step = 0;; ++step) {
      testing::SeedSchedule(200 + step);
      std::vector<testing::Part> parts;
      for (const auto& runner : runners) {
        if (runner->state->position() < tokens) parts.push_back({runner.get(), 1});
      }
      if (parts.empty()) break;
      testing::Step(*cuda_, spec, parts);
    }
    for (int i = 0; i < sequences; ++i) {
      const auto whole = testing::RunAlone(*cuda_, spec, all[i], {tokens});
      for (size_t e = 0; e < whole[0].size(); ++e) {
        ASSERT_EQ(runners[i]->outputs[0][e], whole[0][e])
            << testing::Describe(spec) << " sequence " << i << " element " << e;
      }
    }
  }
}

// A gate that keeps all changes no bit, and one that keeps nothing leaves a token's own value.
TEST_F(TensorAttentionTest, OpenAndShutGates) {
  Random random(4);
  for (const auto& [kind, shape] :
       {std::pair(AttentionKind::kLearnedSketchMixed, Shape{1, 64, 32, 80, 170}),
        std::pair(AttentionKind::kLinear, Shape{1, 32, 0, 16, 53})}) {
    AttentionSpec gated = Bf16Spec(kind, shape), plain = gated;
    gated.decay_gate = true;
    Sequence sequence = testing::RandomSequence(gated, shape.tokens, &random);
    std::vector<float>& log_decay = sequence.layers[0].log_decay;
    const std::vector<int> halves = {shape.tokens / 2, shape.tokens - shape.tokens / 2};
    std::ranges::fill(log_decay, 0.0f);
    EXPECT_EQ(testing::RunAlone(*cuda_, gated, sequence, halves),
              testing::RunAlone(*cuda_, plain, sequence, halves))
        << testing::Describe(gated);
    std::ranges::fill(log_decay, -1000.0f);
    const auto shut = testing::RunAlone(*cuda_, gated, sequence, halves);
    for (int t = 0; t < shape.tokens; ++t) {
      const auto own = testing::RunAlone(*cuda_, plain, TokenOf(sequence, t), {1});
      for (int i = 0; i < gated.head_dim; ++i) {
        ASSERT_EQ(shut[0][t * gated.head_dim + i], own[0][i])
            << testing::Describe(gated) << " " << t;
      }
    }
  }
}

}  // namespace
}  // namespace polysketch
