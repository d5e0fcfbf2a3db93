// Grouped queries, windows with sinks and far parts, and layers that differ, on the general and on the tensor core kernels:
// against the definition, and the same bits under every split and beside other sequences; states of such
// layers that are saved, copied and cut.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/cuda/bf16_error.h"
#include "tests/cuda/cuda_test.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/attention_oracle.h"
#include "tests/kernels/far_window_case.h"

namespace polysketch {
namespace {

using testing::Layers;
using testing::Random;
using testing::Runner;
using testing::Sequence;

struct Shape {
  int heads, kv_heads, head_dim, block;
  int window = 0;
  WindowKind kind = WindowKind::kSliding;
  int sinks = 0;
  int far_size = 0, far_length = 0;
  AttentionKind far_kind = AttentionKind::kSymmetricPower;
};

AttentionSpec Spec(AttentionKind kind, StateFormat format, const Shape& shape) {
  AttentionSpec spec = testing::MakeSpec(kind, shape.heads, shape.head_dim, 16, shape.block);
  spec.kv_heads = shape.kv_heads;
  spec.window = shape.window;
  spec.window_kind = shape.kind;
  spec.sinks = shape.sinks;
  spec.far_kind = shape.far_kind;
  spec.far_size = shape.far_size;
  spec.far_length = shape.far_length;
  spec.state_format = format;
  return spec;
}

AttentionSpec Gated(AttentionSpec spec) {
  spec.decay_gate = true;
  if (!spec.kv_cache()) spec.stabilizer = 1e-6f;
  return spec;
}

// What the tensor core kernels compute: windows that begin within a part of 64 keys and within a block,
// sinks in a part of their own, in a shared one and in several; far parts of windows of one block and of
// several, of one part of features and of several, at lengths that sequences pass and that they do not. Some
// of both formats.
std::vector<AttentionSpec> TensorSpecs() {
  constexpr auto kF = StateFormat::kBf16;
  constexpr auto kBlocks = WindowKind::kBlocks;
  std::vector<AttentionSpec> specs = {
      Spec(AttentionKind::kSoftmax, kF, {4, 2, 64, 64, 100, WindowKind::kSliding, 3}),
      Spec(AttentionKind::kSoftmax, kF, {2, 1, 32, 24, 40, kBlocks, 30}),
      Spec(AttentionKind::kSoftmax, kF, {1, 1, 128, 72, 70, WindowKind::kSliding, 0}),
      Spec(AttentionKind::kSoftmax, kF, {3, 1, 32, 80, 1, WindowKind::kSliding, 1}),
      Spec(AttentionKind::kSoftmax, kF, {6, 2, 64, 80}),
      Spec(AttentionKind::kSoftmax, kF, {7, 1, 64, 32}),
      Spec(AttentionKind::kPolynomial, kF, {20, 1, 32, 24}),
      Gated(Spec(AttentionKind::kSoftmax, kF, {16, 1, 32, 24, 48, kBlocks, 30, 16, 1000})),
      Spec(AttentionKind::kSoftmax, kF, {4, 2, 64, 32, 64, kBlocks, 4, 32, 150}),
      Spec(AttentionKind::kSoftmax, kF, {2, 1, 32, 24, 24, kBlocks, 30, 16, 1000}),
      Spec(AttentionKind::kSoftmax, kF, {1, 1, 128, 80, 80, kBlocks, 0, 48, 100}),
      Spec(AttentionKind::kSoftmax, kF,
           {4, 2, 64, 32, 64, kBlocks, 4, 128, 150, AttentionKind::kLinear}),
      Spec(AttentionKind::kSoftmax, kF,
           {2, 1, 32, 24, 24, kBlocks, 30, 16, 1000, AttentionKind::kLinear}),
      Spec(AttentionKind::kSoftmax, kF, {2, 1, 24, 16, 32, kBlocks, 4, 32, 70}),  // general
      Gated(Spec(AttentionKind::kSoftmax, kF, {4, 2, 64, 32, 64, kBlocks, 4, 32, 150})),
      Spec(AttentionKind::kPolynomial, kF, {2, 1, 32, 24, 37, WindowKind::kSliding, 5}),
      Gated(Spec(AttentionKind::kSymmetricPower, kF, {4, 2, 32, 40})),
      Gated(Spec(AttentionKind::kSymmetricPower, kF, {2, 1, 64, 32})),
      Spec(AttentionKind::kLearnedSketchMixed, kF, {3, 1, 64, 32}),
      Spec(AttentionKind::kLinear, kF, {2, 1, 32, 16})};
  for (const size_t i : {0, 2, 4, 5, 7, 9, 10, 11, 13, 14, 15, 17, 19}) {
    specs.push_back(specs[i]);
    specs.back().state_format = StateFormat::kQ8;
  }
  return specs;
}

int Tokens(const AttentionSpec& spec) { return 3 * spec.block + 2 * spec.window + 11; }

class CudaLayersTest : public testing::CudaTest {
 protected:
  // A sequence beside another one, with its last tokens one by one and in random parts: the bits of it alone.
  void ExpectAnySplit(const Layers& layers, int tokens, Random* random) {
    const Sequence sequence = testing::RandomSequence(layers, tokens, random);
    const Sequence other = testing::RandomSequence(layers, tokens, random);
    const auto whole = testing::RunAlone(*cuda_, layers, sequence, {tokens});
    std::vector<std::vector<int>> splits = {std::vector<int>(21, 1)};
    splits[0][0] = tokens - 20;
    for (int i = 0; i < Scale(1, 20); ++i) splits.push_back(random->Split(tokens));
    for (size_t i = 0; i < splits.size(); ++i) {
      testing::SeedSchedule(i);
      Runner mine(*cuda_, layers, sequence), its(*cuda_, layers, other);
      for (const int rows : splits[i]) {
        const int left = tokens - static_cast<int>(its.state->position());
        const int beside = std::min<int>(left, static_cast<int>(random->Int(0, 20)));
        std::vector<testing::Part> step = {{&mine, rows}};
        if (i > 0 && beside > 0) step.insert(step.begin() + random->Int(0, 1), {&its, beside});
        testing::Step(*cuda_, layers, step);
      }
      for (size_t layer = 0; layer < whole.size(); ++layer) {
        for (size_t e = 0; e < whole[layer].size(); ++e) {
          ASSERT_EQ(mine.outputs[layer][e], whole[layer][e])
              << testing::Describe(layers) << " split " << ::testing::PrintToString(splits[i])
              << " layer " << layer << " element " << e;
        }
      }
    }
  }
};

TEST_F(CudaLayersTest, TensorCoreKernelsAreTheirDefinition) {
  Random random(1);
  for (const AttentionSpec& spec : TensorSpecs()) {
    testing::ExpectBf16Definition(*cuda_, spec, Tokens(spec), &random);
  }
}

TEST_F(CudaLayersTest, TensorCoreKernelsUnderAnySplit) {
  Random random(2);
  for (const AttentionSpec& spec : TensorSpecs()) ExpectAnySplit(spec, Tokens(spec), &random);
}

// Rows of more parts than are joined at a time: one token, and several.
TEST_F(CudaLayersTest, ResultsOfManyParts) {
  Random random(8);
  const AttentionSpec spec = Spec(AttentionKind::kSoftmax, StateFormat::kQ8, {2, 1, 32, 64});
  constexpr int kTokens = 2090;
  const Sequence sequence = testing::RandomSequence(spec, kTokens, &random);
  const auto whole = testing::RunAlone(*cuda_, spec, sequence, {kTokens});
  const auto parts = testing::RunAlone(*cuda_, spec, sequence, {kTokens - 6, 1, 4, 1});
  for (size_t e = 0; e < whole[0].size(); ++e) {
    ASSERT_EQ(parts[0][e], whole[0][e]) << " element " << e;
  }
}

// Those of float32 states.
std::vector<AttentionSpec> GeneralSpecs() {
  std::vector<AttentionSpec> specs = testing::GroupedSpecs();
  for (const AttentionSpec& spec : testing::GroupedRecurrentSpecs()) {
    if (spec.state_format == StateFormat::kF32) specs.push_back(spec);
  }
  for (const AttentionSpec& spec : testing::WindowSpecs()) specs.push_back(spec);
  for (const AttentionSpec& spec : testing::FarWindowSpecs()) specs.push_back(spec);
  return specs;
}

TEST_F(CudaLayersTest, GeneralKernelsAreTheirDefinition) {
  Random random(3);
  for (const AttentionSpec& spec : GeneralSpecs()) {
    const int tokens = 2 * spec.block + (spec.far_part() ? 3 : 1) * spec.window + 9;
    Sequence sequence = testing::RandomSequence(spec, tokens, &random);
    testing::AttentionRows& rows = sequence.layers[0];
    const auto expect_definition = [&] {
      const testing::OracleOutput want = testing::AttentionOracle(spec, rows, tokens);
      const auto out = testing::RunAlone(*cuda_, spec, sequence, {tokens});
      for (size_t i = 0; i < want.value.size(); ++i) {
        ASSERT_NEAR(out[0][i], want.value[i], want.tolerance[i])
            << testing::Describe(spec) << " element " << i;
      }
    };
    expect_definition();
    if (!spec.far_part()) continue;
    // Far weights that are far smaller and far larger than those of the window; scores of any size.
    for (const float scale : {1e-4f, 1e7f}) {
      for (float& x : rows.far_q) x *= scale;
      expect_definition();
    }
    for (float& x : rows.near_q) x *= 12;
    expect_definition();
  }
}

TEST_F(CudaLayersTest, FarPartsBesideWindowsOfOtherSize) {
  Random random(7);
  std::vector<AttentionSpec> specs = testing::FarWindowSpecs();
  for (const AttentionSpec& spec : TensorSpecs()) {
    if (spec.far_part() && spec.state_format == StateFormat::kBf16) specs.push_back(spec);
  }
  for (const AttentionSpec& spec : specs) {
    const int tokens = 4 * spec.window + 9;
    testing::ExpectFarPartBesideWindow(
        *cuda_, spec, {tokens - 3, 1, 2}, &random,
        [&](const testing::AttentionRows& rows, const testing::OracleOutput& oracle) {
          return spec.state_format == StateFormat::kF32
                     ? oracle.tolerance
                     : testing::Bf16Tolerance(spec, rows, tokens, oracle);
        });
  }
}

// Layers that differ, of float32, of bf16 and of 8-bit numbers, and some on tensor cores.
std::vector<Layers> Mixtures() {
  std::vector<Layers> models;
  for (const Layers& layers : testing::Mixtures()) {
    if (std::ranges::any_of(layers, [](const AttentionSpec& spec) {
          return spec.state_format != StateFormat::kF32;
        })) {
      continue;
    }
    models.push_back(layers);
  }
  const AttentionSpec full = Spec(AttentionKind::kSoftmax, StateFormat::kBf16, {4, 2, 32, 24});
  AttentionSpec window = full;
  window.window = 30;
  window.sinks = 2;
  const AttentionSpec gated =
      Gated(Spec(AttentionKind::kSymmetricPower, StateFormat::kBf16, {4, 2, 32, 40}));
  AttentionSpec far = full;
  far.block = far.window = 16;
  far.window_kind = WindowKind::kBlocks;
  far.sinks = 3;
  far.far_size = 16;
  far.far_length = 40;
  std::vector<AttentionSpec> layers = {window, far, full, gated, far};
  models.emplace_back(layers);
  for (AttentionSpec& layer : layers) layer.state_format = StateFormat::kQ8;
  models.emplace_back(layers);
  return models;
}

TEST_F(CudaLayersTest, LayersThatDifferUnderAnySplit) {
  Random random(4);
  for (const Layers& layers : Mixtures()) ExpectAnySplit(layers, 75, &random);
}

// Each layer of a mixture has the bits that it has in a model of its own.
TEST_F(CudaLayersTest, LayersThatDifferAreThoseOfTheirOwnModels) {
  Random random(5);
  for (const Layers& layers : Mixtures()) {
    const Sequence sequence = testing::RandomSequence(layers, 75, &random);
    const auto all = testing::RunAlone(*cuda_, layers, sequence, {40, 1, 34});
    for (int i = 0; i < layers.size(); ++i) {
      const Sequence own{75, {sequence.layers[static_cast<size_t>(i)]}};
      EXPECT_EQ(testing::RunAlone(*cuda_, layers[i], own, {75})[0], all[static_cast<size_t>(i)])
          << testing::Describe(layers) << " layer " << i;
    }
  }
}

// Before and after blocks are folded and dropped; into new states and into used ones.
TEST_F(CudaLayersTest, StatesAreSavedCopiedAndCut) {
  Random random(6);
  std::vector<Layers> models = Mixtures();
  const std::vector<AttentionSpec> windows = testing::WindowSpecs();
  models.push_back(Layers(windows[1], 2));
  models.push_back(Layers(windows[4], 2));
  const std::vector<AttentionSpec> far = testing::FarWindowSpecs();
  models.push_back(Layers(far[0], 2));
  models.push_back(Layers(far[3], 2));
  models.push_back(Layers(far[7], 2));
  // The copies of walks, and those that are made of a saved state.
  models.push_back(
      Layers(Spec(AttentionKind::kLearnedSketchMixed, StateFormat::kQ8, {2, 1, 64, 16}), 2));
  for (size_t model = 0; model < models.size(); ++model) {
    const Layers& layers = models[model];
    const Sequence whole = testing::RandomSequence(layers, 80, &random);
    const Sequence other = testing::RandomSequence(layers, 80, &random);
    const auto want = testing::RunAlone(*cuda_, layers, whole, {80});
    const auto expect_goes_on = [&](Runner* runner, const std::string& what) {
      testing::Step(*cuda_, layers, {{runner, 80 - static_cast<int>(runner->state->position())}});
      EXPECT_EQ(runner->outputs, want) << testing::Describe(layers) << " " << what;
    };
    std::vector<int> cuts = {0, 48, 61};
    if (Scale(0, 1) == 0) cuts = {cuts[model % cuts.size()]};
    for (const int cut : cuts) {
      const std::string at = "at " + std::to_string(cut);
      Runner first(*cuda_, layers, whole);
      if (cut > 0) testing::Step(*cuda_, layers, {{&first, cut}});
      EXPECT_EQ(first.state->bytes(), cuda_->StateBytes(layers, cut)) << at;
      std::vector<uint8_t> saved(first.state->SavedBytes());
      first.state->Save(saved);
      for (const bool loads : {true, false}) {
        for (const int before : {0, 70}) {
          Runner second(*cuda_, layers, other);
          if (before > 0) testing::Step(*cuda_, layers, {{&second, before}});
          if (loads) {
            ASSERT_TRUE(second.state->Load(cut, saved).ok());
          } else {
            second.state->CopyFrom(*first.state);
          }
          EXPECT_EQ(second.state->bytes(), first.state->bytes()) << at;
          second.sequence = &whole;
          second.outputs = first.outputs;
          expect_goes_on(&second, (loads ? "loaded " : "copied ") + at);
        }
      }
      // Tokens of another sequence that are taken back.
      Runner longer(*cuda_, layers, other);
      longer.state = first.state->Clone();
      const int more = static_cast<int>(std::min<int64_t>(first.state->Removable(cut), 9));
      if (more > 0) testing::Step(*cuda_, layers, {{&longer, more}});
      ASSERT_LE(longer.state->EarliestTruncation(), cut);
      longer.state->Truncate(cut);
      longer.sequence = &whole;
      longer.outputs = first.outputs;
      expect_goes_on(&longer, "cut " + at);
    }
  }
}

}  // namespace
}  // namespace polysketch
