// The same bits whatever runs beside a sequence: any split, any neighbours, any number of threads.
// Compared with memcmp within one backend and instruction set, for every kind, with and without a
// decay gate, and all state formats.
#include <algorithm>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>
#include "kernels/backend.h"
#include "tests/kernels/attention_case.h"
#include "tests/testing/backend_test.h"
#include "tests/testing/environment.h"

namespace polysketch {
namespace {

using testing::Count;
using testing::Layers;
using testing::Random;
using testing::Runner;
using testing::Sequence;
using Outputs = std::vector<std::vector<float>>;

::testing::AssertionResult SameBits(const Outputs& a, const Outputs& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "layers differ";
  for (size_t layer = 0; layer < a.size(); ++layer) {
    if (a[layer].size() != b[layer].size()) {
      return ::testing::AssertionFailure() << a[layer].size() << " and " << b[layer].size();
    }
    if (std::memcmp(a[layer].data(), b[layer].data(), a[layer].size() * sizeof(float)) == 0) {
      continue;
    }
    for (size_t i = 0; i < a[layer].size(); ++i) {
      if (std::memcmp(&a[layer][i], &b[layer][i], sizeof(float)) != 0) {
        return ::testing::AssertionFailure() << "layer " << layer << " element " << i << ": "
                                             << a[layer][i] << " and " << b[layer][i];
      }
    }
  }
  return ::testing::AssertionSuccess();
}

// The largest block of the layers.
int Block(const Layers& layers) {
  int block = 0;
  for (const AttentionSpec& spec : layers) block = std::max(block, spec.block);
  return block;
}

class AttentionDeterminismTest : public testing::BackendTest {
 protected:
  static std::vector<Layers> Specs() {
    std::vector<AttentionSpec> two, one;
    for (const AttentionKind kind : testing::kAllKinds) {
      two.push_back(testing::MakeSpec(kind, 2, 10, 11, 16));
      one.push_back(testing::MakeSpec(kind, 3, 32, 16, 3));
      const int width = testing::SketchesWholeHeads(kind) ? 32 : 64;
      one.push_back(testing::MakeSpec(kind, 1, width, 32, 32));
    }
    std::vector<Layers> models =
        testing::InLayers(testing::WithDecayGates(testing::WithStateFormats(two)), 2);
    const auto add = [&](const std::vector<Layers>& more) {
      models.insert(models.end(), more.begin(), more.end());
    };
    add(testing::InLayers(testing::WithDecayGates(testing::WithStateFormats(one)), 1));
    add(testing::InLayers(testing::WithStateFormats(testing::GroupedSpecs()), 1));
    add(testing::InLayers(testing::GroupedRecurrentSpecs(), 1));
    add(testing::InLayers(testing::WithStateFormats(testing::WindowSpecs()), 1));
    add(testing::InLayers(testing::WithStateFormats(testing::FarWindowSpecs()), 1));
    add(testing::InLayers(testing::WithStateFormats(testing::SpanSpecs()), 1));
    add(testing::Mixtures());
    return models;
  }
};

TEST_P(AttentionDeterminismTest, AnySplit) {
  const auto backend = NewBackend(1);
  Random random(1);
  for (const Layers& spec : Specs()) {
    const int tokens = 4 * Block(spec) + 13;
    const Sequence sequence = testing::RandomSequence(spec, tokens, &random);
    const Outputs whole = testing::RunAlone(*backend, spec, sequence, {tokens});
    EXPECT_TRUE(
        SameBits(testing::RunAlone(*backend, spec, sequence, std::vector<int>(tokens, 1)), whole))
        << testing::Describe(spec) << " token by token";
    for (int i = 0; i < Count(GetParam() == "reference" ? 2 : 8, 200); ++i) {
      const std::vector<int> parts = random.Split(tokens);
      EXPECT_TRUE(SameBits(testing::RunAlone(*backend, spec, sequence, parts), whole))
          << testing::Describe(spec) << " split " << ::testing::PrintToString(parts);
    }
  }
}

TEST_P(AttentionDeterminismTest, AnyThreads) {
  if (GetParam() == "reference") GTEST_SKIP() << "it has one thread";
  Random random(2);
  const auto one = NewBackend(1);
  const std::vector<Layers> specs = Specs();
  std::vector<Sequence> sequences;
  std::vector<std::vector<int>> splits;
  std::vector<Outputs> want;
  for (const Layers& spec : specs) {
    const int tokens = 4 * Block(spec) + 13;
    sequences.push_back(testing::RandomSequence(spec, tokens, &random));
    splits.push_back(random.Split(tokens));
    want.push_back(testing::RunAlone(*one, spec, sequences.back(), {tokens}));
  }
  // Long parts of a sequence are divided within a head, even on two threads, and short ones are
  // not.
  for (const int threads : {2, 3, 16}) {
    const auto backend = NewBackend(threads);
    for (size_t i = 0; i < specs.size(); ++i) {
      const int tokens = sequences[i].tokens;
      for (const auto& parts :
           {splits[i], {tokens}, {Block(specs[i]) + 1, tokens - Block(specs[i]) - 1}}) {
        EXPECT_TRUE(SameBits(testing::RunAlone(*backend, specs[i], sequences[i], parts), want[i]))
            << testing::Describe(specs[i]) << " " << threads << " threads, split "
            << ::testing::PrintToString(parts);
      }
    }
  }
}

// A long prompt after a state that was loaded, which lacks what is read at one byte, at the end of
// a block and within one.
TEST_P(AttentionDeterminismTest, AnyThreadsAfterALoad) {
  if (GetParam() == "reference") GTEST_SKIP() << "it has one thread";
  Random random(5);
  const auto one = NewBackend(1), many = NewBackend(16);
  for (const Layers& spec : Specs()) {
    const int tokens = 4 * Block(spec) + 37;
    const Sequence sequence = testing::RandomSequence(spec, tokens, &random);
    const Outputs whole = testing::RunAlone(*one, spec, sequence, {tokens});
    for (const int saved : {Block(spec) / 2 + 1, 2 * Block(spec), 2 * Block(spec) + 1}) {
      Runner first(*one, spec, sequence), then(*many, spec, sequence);
      testing::Step(*one, spec, {{&first, saved}});
      std::vector<uint8_t> bytes(first.state->SavedBytes());
      first.state->Save(bytes);
      ASSERT_TRUE(then.state->Load(saved, bytes).ok());
      testing::Step(*many, spec, {{&then, tokens - saved}});
      Outputs got = first.outputs;
      for (size_t layer = 0; layer < got.size(); ++layer) {
        got[layer].insert(got[layer].end(), then.outputs[layer].begin(), then.outputs[layer].end());
      }
      EXPECT_TRUE(SameBits(got, whole)) << testing::Describe(spec) << " loaded at " << saved;
    }
  }
}

// One sequence among up to 63 others that come and go: short and long prompts, single tokens, any
// order in the batch.
TEST_P(AttentionDeterminismTest, AnyNeighbours) {
  const auto backend = NewBackend(2);
  Random random(3);
  for (const Layers& spec : Specs()) {
    const int tokens = 2 * Block(spec) + 13;
    const Sequence sequence = testing::RandomSequence(spec, tokens, &random);
    const Outputs alone = testing::RunAlone(*backend, spec, sequence, {tokens});
    for (const int neighbours : {1, 7, Count(GetParam() == "reference" ? 8 : 20, 63)}) {
      std::vector<Sequence> others;
      for (int i = 0; i < neighbours; ++i) {
        others.push_back(testing::RandomSequence(spec, random.Int(1, 2 * Block(spec)), &random));
      }
      std::vector<Runner> runners;
      runners.emplace_back(*backend, spec, sequence);
      for (const Sequence& other : others) runners.emplace_back(*backend, spec, other);
      while (runners[0].state->position() < tokens) {
        std::vector<testing::Part> parts;
        for (Runner& runner : runners) {
          const int left = runner.sequence->tokens - static_cast<int>(runner.state->position());
          const bool takes_part = &runner == &runners[0] || random.Int(0, 3) > 0;
          if (left == 0 || !takes_part) continue;
          const bool decodes = random.Int(0, 1) == 0;
          parts.push_back({&runner, decodes ? 1 : static_cast<int>(random.Int(1, left))});
          std::swap(parts.back(), parts[random.Int(0, parts.size() - 1)]);
        }
        testing::Step(*backend, spec, parts);
      }
      EXPECT_TRUE(SameBits(runners[0].outputs, alone))
          << testing::Describe(spec) << " beside " << neighbours;
    }
  }
}

// Decoding steps of sequences of which some are long: tasks end within queries, at the ends of
// spans.
TEST_P(AttentionDeterminismTest, AnyDivisionOfSpans) {
  if (GetParam() == "reference") GTEST_SKIP() << "it divides nothing";
  Random random(6);
  AttentionSpec spec = testing::MakeSpec(AttentionKind::kSoftmax, 6, 16, 0, 64);
  spec.kv_heads = 3;
  constexpr int tokens = 2600, prompt = tokens - 40;
  const Sequence sequence = testing::RandomSequence(spec, tokens, &random),
                 other = testing::RandomSequence(spec, 300, &random);
  for (const AttentionSpec& of : testing::WithStateFormats({spec})) {
    const Outputs whole = testing::RunAlone(*NewBackend(1), of, sequence, {tokens});
    for (const int threads : {1, 2, 3, 7, 32}) {
      const auto backend = NewBackend(threads);
      Runner runner(*backend, of, sequence), beside(*backend, of, other);
      testing::Step(*backend, of, {{&runner, prompt}, {&beside, 200}});
      for (int i = 0; i < 20; ++i) testing::Step(*backend, of, {{&beside, 1}, {&runner, 1}});
      testing::Step(*backend, of, {{&runner, 9}, {&beside, 50}});
      testing::Step(*backend, of, {{&runner, 11}});
      EXPECT_TRUE(SameBits(runner.outputs, whole))
          << testing::Describe(of) << " " << threads << " threads";
    }
  }
}

// Makes the first `tokens` tokens of a text those of another.
void BeginAs(const Layers& layers, const Sequence& other, int tokens, Sequence* text) {
  for (int i = 0; i < layers.size(); ++i) {
    const auto copy = [&](const std::vector<float>& from, std::vector<float>* to) {
      std::copy_n(from.begin(), from.size() / other.tokens * tokens, to->begin());
    };
    const testing::AttentionRows& from = other.layers[i];
    testing::AttentionRows& to = text->layers[i];
    copy(from.near_q, &to.near_q);
    copy(from.near_k, &to.near_k);
    copy(from.v, &to.v);
  }
}

// Steps of sequences whose states are copies of one another's, at the ends of blocks and within
// them: they share the blocks of several spans, or of none. Single tokens and drafts, and a
// sequence that is not a copy.
TEST_P(AttentionDeterminismTest, AnyNeighboursThatShareBlocks) {
  if (GetParam() == "reference") GTEST_SKIP() << "its states share nothing";
  Random random(7);
  std::vector<AttentionSpec> specs = {testing::MakeSpec(AttentionKind::kSoftmax, 6, 16, 0, 64),
                                      testing::MakeSpec(AttentionKind::kSoftmax, 2, 33, 0, 96),
                                      testing::MakeSpec(AttentionKind::kSoftmax, 26, 7, 0, 16)};
  specs[0].kv_heads = 2;
  specs[2].kv_heads = 2;
  specs = testing::WithStateFormats(specs);
  specs.push_back(specs[0]);
  specs.back().window = 500;
  specs.back().sinks = 70;
  specs.push_back(testing::MakeSpec(AttentionKind::kPolynomial, 3, 10, 0, 64));
  constexpr int tokens = 1300, rest = 40;
  for (const AttentionSpec& spec : specs) {
    const Layers layers(spec);
    const Sequence stem = testing::RandomSequence(layers, tokens, &random);
    struct Text {
      Sequence sequence;
      int fork;
      std::vector<float> want;  // after the fork
    };
    std::vector<Text> texts;
    const auto one = NewBackend(1);
    for (const int fork : {0, 1000, 1088, 1100, 1100, 1270}) {
      for (int i = 0; i < (fork == 1088 ? Count(17, 40) : 1); ++i) {
        texts.push_back({testing::RandomSequence(layers, fork + rest, &random), fork, {}});
        Text& text = texts.back();
        BeginAs(layers, stem, fork, &text.sequence);
        text.want = testing::RunAlone(*one, layers, text.sequence, {fork + rest})[0];
        text.want.erase(text.want.begin(),
                        text.want.begin() + int64_t{fork} * spec.heads * spec.head_dim);
      }
    }
    for (const int threads : {2, 7}) {
      const auto backend = NewBackend(threads);
      Runner trunk(*backend, layers, stem);
      std::vector<Runner> runners;
      for (const Text& text : texts) {
        runners.emplace_back(*backend, layers, text.sequence);
        const int left = text.fork - static_cast<int>(trunk.state->position());
        if (left > 0) testing::Step(*backend, layers, {{&trunk, left}});
        runners.back().state->CopyFrom(*trunk.state);
      }
      for (bool last = false; !last;) {
        std::vector<testing::Part> parts;
        last = true;
        for (Runner& runner : runners) {
          const auto left = static_cast<int>(runner.sequence->tokens - runner.state->position());
          if (left == 0) continue;
          last = false;
          if (random.Int(0, 5) == 0) continue;
          const int rows = random.Int(0, 3) > 0 ? 1 : static_cast<int>(random.Int(1, 9));
          parts.push_back({&runner, std::min(left, rows)});
          std::swap(parts.back(), parts[random.Int(0, parts.size() - 1)]);
        }
        if (!parts.empty()) testing::Step(*backend, layers, parts);
      }
      for (size_t i = 0; i < texts.size(); ++i) {
        ASSERT_TRUE(SameBits(runners[i].outputs, {texts[i].want}))
            << testing::Describe(layers) << " " << threads << " threads, copied at "
            << texts[i].fork;
      }
    }
  }
}

// The state format changes what is read, so it must change the bits.
TEST_P(AttentionDeterminismTest, FormatsDiffer) {
  const auto backend = NewBackend(1);
  Random random(4);
  for (const Layers& layers : Specs()) {
    AttentionSpec spec = layers[0];
    if (layers.size() > 2 || spec.state_format != StateFormat::kF32) continue;
    const int tokens = 2 * spec.block;
    const Sequence sequence = testing::RandomSequence(spec, tokens, &random);
    const std::vector<StateFormat> formats = testing::NarrowFormats(spec);
    const Outputs f32 = testing::RunAlone(*backend, spec, sequence, {tokens});
    spec.state_format = formats[0];
    const Outputs half = testing::RunAlone(*backend, spec, sequence, {tokens});
    EXPECT_FALSE(SameBits(half, f32)) << testing::Describe(spec);
    spec.state_format = formats[1];
    const Outputs q8 = testing::RunAlone(*backend, spec, sequence, {tokens});
    EXPECT_FALSE(SameBits(q8, f32)) << testing::Describe(spec);
    EXPECT_FALSE(SameBits(q8, half)) << testing::Describe(spec);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionDeterminismTest,
                         ::testing::ValuesIn(testing::AllBackends()), testing::ParamName);

}  // namespace
}  // namespace polysketch
