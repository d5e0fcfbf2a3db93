// Attention of every backend against the definition in float64, for every kind and all state
// formats.
#include <algorithm>
#include <cmath>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include "kernels/backend.h"
#include "kernels/new_backend.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/attention_oracle.h"
#include "tests/kernels/far_window_case.h"
#include "tests/testing/backend_test.h"
#include "tests/testing/environment.h"

namespace polysketch {
namespace {

using testing::kU;
using testing::Random;
using testing::Sequence;

struct Shape {
  int heads, head_dim, size, block, tokens;
};
// Odd widths, sketches that are no multiple of 8, blocks of one token, several blocks, a ragged
// last one.
constexpr Shape kShapes[] = {{1, 7, 5, 1, 9},
                             {2, 10, 8, 3, 20},
                             {3, 6, 12, 16, 55},
                             {2, 33, 11, 32, 97},
                             {2, 64, 32, 64, 200}};

class AttentionTest : public testing::BackendTest {};

// AttentionOracle, which is most of the time of a test: a test runs for each backend with the same
// cases, and the first one computes it.
const testing::OracleOutput& Definition(const AttentionSpec& spec, const Sequence& sequence) {
  struct Case {
    AttentionSpec spec;
    Sequence sequence;
    testing::OracleOutput output;
  };
  static std::string of_test;
  static std::list<Case> cases;
  std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  name.resize(name.find('/'));  // of all backends
  if (std::exchange(of_test, name) != name) cases.clear();
  for (const Case& one : cases) {
    if (one.spec == spec && one.sequence == sequence) return one.output;
  }
  cases.push_back(
      {spec, sequence, testing::AttentionOracle(spec, sequence.layers[0], sequence.tokens)});
  return cases.back().output;
}

// splits: whether folds of narrow blocks split features.
void ExpectDefinition(Backend& backend, bool splits, const AttentionSpec& spec,
                      const Sequence& sequence) {
  const testing::OracleOutput& want = Definition(spec, sequence);
  const auto out = testing::RunAlone(backend, spec, sequence, {sequence.tokens});
  for (size_t i = 0; i < want.value.size(); ++i) {
    // Of a KV cache the expectation has what is kept.
    const AttentionSpec sums = spec.far_part() ? spec.FarPart() : spec;
    const double read = !spec.has_far_part()                      ? 0
                        : sums.state_format == StateFormat::kBf16 ? want.bf16_tolerance[i]
                        : sums.state_format == StateFormat::kQ8   ? want.byte_tolerance[i]
                                                                  : 0;
    const double split = splits && sums.narrow_block() ? want.split_tolerance[i] : 0;
    const double tolerance = want.tolerance[i] + read + split;
    ASSERT_NEAR(out[0][i], want.value[i], tolerance) << testing::Describe(spec) << " element " << i;
  }
}

std::vector<int> PowersOf(AttentionKind kind) {
  if (kind == AttentionKind::kPolynomial) return {2, 4, 8};
  if (kind == AttentionKind::kPolynomialSquare) return {1, 2, 3, 8};
  return {TraitsOf(kind).default_power};
}

TEST_P(AttentionTest, IsItsDefinition) {
  const auto backend = NewBackend(2);
  Random random(1);
  for (const AttentionKind kind : testing::kAllKinds) {
    for (const Shape& shape : kShapes) {
      if (testing::SketchesWholeHeads(kind) && shape.head_dim > 32) continue;
      for (const int power : PowersOf(kind)) {
        AttentionSpec ungated =
            testing::MakeSpec(kind, shape.heads, shape.head_dim, shape.size, shape.block);
        ungated.power = power;
        for (const AttentionSpec& spec : testing::WithDecayGates({ungated})) {
          const Sequence sequence = testing::RandomSequence(spec, shape.tokens, &random);
          for (const AttentionSpec& of : testing::WithStateFormats({spec})) {
            ExpectDefinition(*backend, HasTiles(), of, sequence);
          }
        }
      }
    }
  }
}

// The same with groups of queries, and the bits of as many heads of keys and values as of queries,
// of which those of a group are equal.
TEST_P(AttentionTest, GroupedQueriesReadTheirKvHead) {
  const auto backend = NewBackend(2);
  Random random(7);
  std::vector<AttentionSpec> specs = testing::WithStateFormats(testing::GroupedSpecs());
  for (const AttentionSpec& spec : testing::GroupedRecurrentSpecs()) specs.push_back(spec);
  for (const AttentionSpec& spec : specs) {
    const int tokens = 3 * spec.block + 30;
    const Sequence sequence = testing::RandomSequence(spec, tokens, &random);
    for (const testing::AttentionRows& rows : sequence.layers) {
      ASSERT_EQ(rows.near_k.size() * spec.query_group(), rows.near_q.size());
    }
    ExpectDefinition(*backend, HasTiles(), spec, sequence);

    AttentionSpec repeated_spec = spec;
    repeated_spec.kv_heads = 0;
    Sequence repeated = sequence;
    for (testing::AttentionRows& rows : repeated.layers) {
      const auto repeat = [&](std::vector<float>* values, int width) {
        const std::vector<float> heads = std::exchange(*values, {});
        for (size_t i = 0; i < heads.size(); i += width) {
          for (int copy = 0; copy < spec.query_group(); ++copy) {
            values->insert(values->end(), heads.begin() + i, heads.begin() + i + width);
          }
        }
      };
      repeat(&rows.near_k, spec.near_dim());
      repeat(&rows.far_k, spec.far_dim());
      repeat(&rows.v, spec.head_dim);
      repeat(&rows.log_decay, 1);
    }
    EXPECT_EQ(testing::RunAlone(*backend, spec, sequence, {tokens}),
              testing::RunAlone(*backend, repeated_spec, repeated, {tokens}))
        << testing::Describe(spec);
  }
}

// Grouped heads of 128 with a gate, as Brumby and PowerCoder have, and any constant in the
// denominator. Few heads and tokens: the oracle takes a second for ten.
TEST_P(AttentionTest, HeadsOf128WithAnyConstant) {
  const auto backend = NewBackend(2);
  Random random(11);
  AttentionSpec spec = testing::MakeSpec(AttentionKind::kSymmetricPower, 2, 128, 0, 8);
  spec.kv_heads = 1;
  spec.decay_gate = true;
  EXPECT_EQ(spec.features(), 8704);  // 136 tiles of 64; without those below the diagonal 8,256
  const Sequence sequence = testing::RandomSequence(spec, 19, &random);
  constexpr std::pair<float, StateFormat> kCases[] = {
      {1e-6f, StateFormat::kF32}, {128e-14f, StateFormat::kBf16}, {1.0f, StateFormat::kQ8}};
  for (const auto& [stabilizer, format] : kCases) {
    spec.stabilizer = stabilizer;
    spec.state_format = format;
    ExpectDefinition(*backend, HasTiles(), spec, sequence);
  }
}

// Windows, with sinks and groups of queries, in one step and in several.
TEST_P(AttentionTest, WindowsAreTheirDefinition) {
  const auto backend = NewBackend(2);
  Random random(8);
  for (const AttentionSpec& spec : testing::WithStateFormats(testing::WindowSpecs())) {
    for (const int tokens : {1, spec.window + 1, 150}) {
      const Sequence sequence = testing::RandomSequence(spec, tokens, &random);
      ExpectDefinition(*backend, HasTiles(), spec, sequence);
    }
  }
}

// Windows with a far part: of weights like those of the window, far smaller and far larger ones,
// beside scores of any sign and size.
TEST_P(AttentionTest, FarPartsOfWindowsAreTheirDefinition) {
  const auto backend = NewBackend(2);
  Random random(21);
  for (const AttentionSpec& spec : testing::WithStateFormats(testing::FarWindowSpecs())) {
    for (const int tokens : {1, 2 * spec.window, 2 * spec.window + 1, 150}) {
      const Sequence sequence = testing::RandomSequence(spec, tokens, &random);
      ExpectDefinition(*backend, HasTiles(), spec, sequence);
    }
    for (const double scale : {1e-4, 1e3}) {
      Sequence sequence = testing::RandomSequence(spec, 150, &random);
      for (float& x : sequence.layers[0].far_q) x *= static_cast<float>(scale);
      ExpectDefinition(*backend, HasTiles(), spec, sequence);
    }
    Sequence sequence = testing::RandomSequence(spec, 150, &random);
    for (float& x : sequence.layers[0].near_q) x *= 12;
    ExpectDefinition(*backend, HasTiles(), spec, sequence);
  }
}

TEST_P(AttentionTest, FarPartsBesideWindowsOfOtherSize) {
  const auto backend = NewBackend(2);
  Random random(22);
  for (const AttentionSpec& spec : testing::FarWindowSpecs()) {
    testing::ExpectFarPartBesideWindow(
        *backend, spec, {150}, &random,
        [](const testing::AttentionRows&, const testing::OracleOutput& oracle) {
          return oracle.tolerance;
        });
  }
}

// Scores of any size: the sums of spans are rescaled up to the whole range of the exponential.
TEST_P(AttentionTest, SpansAreTheirDefinition) {
  const auto backend = NewBackend(2);
  Random random(11);
  for (const AttentionSpec& spec : testing::WithStateFormats(testing::SpanSpecs())) {
    for (const double scale : {1.0, 12.0}) {
      Sequence sequence = testing::RandomSequence(spec, 4 * spec.block + 13, &random);
      for (float& x : sequence.layers[0].near_q) x *= static_cast<float>(scale);
      ExpectDefinition(*backend, HasTiles(), spec, sequence);
    }
  }
}

// Magnitudes above the largest float16 are kept as that.
TEST_P(AttentionTest, LargeKeysAndValuesOfACacheOfFloat16) {
  const auto backend = NewBackend(1);
  Random random(12);
  AttentionSpec spec = testing::MakeSpec(AttentionKind::kSoftmax, 1, 33, 0, 64);
  spec.state_format = StateFormat::kF16;
  Sequence sequence = testing::RandomSequence(spec, 20, &random);
  testing::AttentionRows& rows = sequence.layers[0];
  for (float& x : rows.near_q) x *= 1e-5f;
  for (size_t i = 0; i < rows.v.size(); i += 3) rows.near_k[i] *= 1e5f;
  for (size_t i = 1; i < rows.v.size(); i += 3) rows.v[i] *= 1e6f;
  for (size_t i = 2; i < rows.v.size(); i += 3) rows.v[i] *= 1e-6f;  // subnormal
  ExpectDefinition(*backend, HasTiles(), spec, sequence);
}

// A window that reaches back to the first token is none, to the bit.
TEST_P(AttentionTest, AWindowOfAllTokensIsNone) {
  const auto backend = NewBackend(2);
  Random random(9);
  for (const AttentionSpec& spec : testing::GroupedSpecs()) {
    const Sequence sequence = testing::RandomSequence(spec, 70, &random);
    const auto want = testing::RunAlone(*backend, spec, sequence, {70});
    for (const WindowKind kind : {WindowKind::kSliding, WindowKind::kBlocks}) {
      AttentionSpec window = spec;
      window.window = 70;
      window.window_kind = kind;
      EXPECT_EQ(testing::RunAlone(*backend, window, sequence, {70}), want)
          << testing::Describe(window);
    }
  }
}

// Layers do not share a past.
TEST_P(AttentionTest, LayersAreSeparate) {
  const auto backend = NewBackend(1);
  Random random(4);
  for (const AttentionKind kind : testing::kAllKinds) {
    for (const AttentionSpec& spec :
         testing::WithDecayGates({testing::MakeSpec(kind, 2, 10, 11, 8)})) {
      const testing::Layers layers(spec, 3);
      const Sequence sequence = testing::RandomSequence(layers, 30, &random);
      const auto together = testing::RunAlone(*backend, layers, sequence, {13, 17});
      for (int layer = 0; layer < 3; ++layer) {
        const Sequence alone{30, {sequence.layers[layer]}};
        EXPECT_EQ(testing::RunAlone(*backend, spec, alone, {30})[0], together[layer])
            << testing::Describe(spec) << " layer " << layer;
      }
    }
  }
}

// Nor do layers that differ.
TEST_P(AttentionTest, LayersOfAMixtureAreSeparate) {
  const auto backend = NewBackend(1);
  Random random(10);
  for (const testing::Layers& layers : testing::Mixtures()) {
    const Sequence sequence = testing::RandomSequence(layers, 60, &random);
    const auto together = testing::RunAlone(*backend, layers, sequence, {13, 1, 46});
    for (int i = 0; i < layers.size(); ++i) {
      const Sequence alone{60, {sequence.layers[i]}};
      EXPECT_EQ(testing::RunAlone(*backend, layers[i], alone, {60})[0], together[i])
          << testing::Describe(layers) << " layer " << i;
    }
  }
}

// Rows of small integers with 6 values a head, whose sums are exact in float32.
Sequence IntegerSequence(const AttentionSpec& spec, int tokens, Random* random) {
  Sequence sequence = testing::RandomSequence(spec, tokens, random);
  testing::AttentionRows& rows = sequence.layers[0];
  const auto make_integers = [&](std::vector<float>* values, int low, int high, int width,
                                 int used) {
    for (size_t i = 0; i < values->size(); ++i) {
      (*values)[i] = static_cast<int>(i % width) < used ? random->Int(low, high) : 0;
    }
  };
  const int used = spec.sketched() ? spec.sketch_size : spec.num_features;
  // Weights of linear and performer come from features that are not negative.
  const int low = spec.sketched() ? -2 : 0;
  if (spec.mixed()) {
    make_integers(&rows.near_q, -1, 1, 6, 6);
    make_integers(&rows.near_k, -1, 1, 6, 6);
    make_integers(&rows.far_q, low, 2, spec.far_dim(), used);
    make_integers(&rows.far_k, low, 2, spec.far_dim(), used);
  } else {
    make_integers(&rows.near_q, low, 2, spec.far_dim(), used);
    make_integers(&rows.near_k, low, 2, spec.far_dim(), used);
  }
  make_integers(&rows.v, -5, 25, 6, 6);  // a mean above zero lets the sums grow
  return sequence;
}

// What these sequences are made for: kinds whose state is read rounded.
std::vector<AttentionSpec> IntegerSpecs() {
  std::vector<AttentionSpec> specs;
  for (const AttentionKind kind : {AttentionKind::kLearnedSketch, AttentionKind::kRandomSketchMixed,
                                   AttentionKind::kLinear, AttentionKind::kPerformer}) {
    for (const int block : {1, 16}) specs.push_back(testing::MakeSpec(kind, 2, 6, 11, block));
  }
  return specs;
}

// The copy is that of the reference, but for sums that lie so near the middle of two integers that
// the rounding of folds decides. Besides those, what is left is the rounding of features, queries
// and weights to 16 bits, and float32.
TEST_P(AttentionTest, ReadsTheCopyOfTheState) {
  if (GetParam() == "reference") GTEST_SKIP() << "the expectation is the reference's";
  const auto backend = NewBackend(1);
  const auto reference = NewReferenceBackend();
  Random random(6);
  for (AttentionSpec spec : IntegerSpecs()) {
    constexpr int tokens = 12 * 16 + 5;
    const Sequence sequence = testing::RandomSequence(spec, tokens, &random);
    const auto exact = testing::RunAlone(*backend, spec, sequence, {tokens});
    spec.state_format = StateFormat::kQ8;
    const testing::OracleOutput oracle = testing::AttentionOracle(spec, sequence.layers[0], tokens);
    const auto want = testing::RunAlone(*reference, spec, sequence, {tokens});
    const auto out = testing::RunAlone(*backend, spec, sequence, {tokens});
    size_t rounded = 0, decided = 0;
    for (size_t i = 0; i < want[0].size(); ++i) {
      const double tolerance = oracle.word_tolerance[i] + oracle.tolerance[i];
      const double off = std::abs(out[0][i] - want[0][i]);
      decided += off > tolerance;
      ASSERT_LE(off, tolerance + oracle.byte_tolerance[i])
          << testing::Describe(spec) << " element " << i;
      rounded += std::abs(want[0][i] - exact[0][i]) > 2 * tolerance;
    }
    EXPECT_LT(decided, rounded / 4) << testing::Describe(spec) << ": another copy";
    EXPECT_GT(rounded, tokens / 4) << testing::Describe(spec) << ": the copy is too exact";
  }
}

// Small integers: every sum is exact in float32, so what bf16 reads is known to the bit.
TEST_P(AttentionTest, ReadsTheRoundedUpperHalfOfTheState) {
  const auto backend = NewBackend(1);
  Random random(2);
  for (AttentionSpec spec : IntegerSpecs()) {
    constexpr int tokens = 12 * 16 + 5;
    const Sequence sequence = IntegerSequence(spec, tokens, &random);
    const testing::AttentionRows& rows = sequence.layers[0];
    // The state as integers; rounded to 8 significant bits, half away from zero, when read.
    const auto round = [](double x) {
      int exponent;
      const double mantissa = std::frexp(std::abs(x), &exponent);
      return std::copysign(std::ldexp(std::floor(std::ldexp(mantissa, 8) + 0.5), exponent - 8), x);
    };
    const std::vector<float>& far_q = testing::FarQueries(spec, rows);
    const std::vector<float>& far_k = testing::FarKeys(spec, rows);
    const int r = spec.far_dim(), features = spec.sketched() ? r * r : r, d = spec.head_dim;
    const auto feature = [&](const float* x, int f) {
      return spec.sketched() ? x[f / r] * x[f % r] : x[f];
    };
    std::vector<double> want(static_cast<size_t>(tokens) * 2 * d);
    int rounded = 0;
    for (int h = 0; h < 2; ++h) {
      std::vector<double> sums(features * d), weights(features);
      for (int t = 0; t < tokens; ++t) {
        const int start = t / spec.block * spec.block;
        if (t == start && t > 0) {
          for (int s = t - spec.block; s < t; ++s) {
            for (int f = 0; f < features; ++f) {
              const double phi = feature(&far_k[(s * 2 + h) * r], f);
              weights[f] += phi;
              for (int i = 0; i < d; ++i) sums[f * d + i] += phi * rows.v[(s * 2 + h) * d + i];
            }
          }
        }
        std::vector<double> numerator(d);
        double denominator = spec.stabilizer;
        for (int f = 0; f < features; ++f) {
          const double phi = feature(&far_q[(t * 2 + h) * r], f);
          denominator += phi * weights[f];
          for (int i = 0; i < d; ++i) {
            const double read = round(sums[f * d + i]);
            rounded += phi != 0 && read != sums[f * d + i];
            numerator[i] += phi * read;
          }
        }
        for (int s = start; s <= t; ++s) {
          const int width = spec.near_dim();
          double dot = 0;
          for (int i = 0; i < width; ++i) {
            dot += rows.near_q[(t * 2 + h) * width + i] * rows.near_k[(s * 2 + h) * width + i];
          }
          const double weight = testing::oracle::WeightOfDot(spec, true, dot, nullptr);
          denominator += weight;
          for (int i = 0; i < d; ++i) numerator[i] += weight * rows.v[(s * 2 + h) * d + i];
        }
        for (int i = 0; i < d; ++i) want[(t * 2 + h) * d + i] = numerator[i] / denominator;
      }
    }
    EXPECT_GT(rounded, 1000) << "the sums are too small for bf16 to matter";

    spec.state_format = StateFormat::kBf16;
    const auto out = testing::RunAlone(*backend, spec, sequence, {tokens});
    for (size_t i = 0; i < want.size(); ++i) {
      // Adding c (1e-6 in linear and performer), a quotient perhaps through a reciprocal, the
      // final rounding.
      ASSERT_NEAR(out[0][i], want[i], 4 * kU * std::abs(want[i]))
          << testing::Describe(spec) << " element " << i;
    }
  }
}

// A gate that keeps everything is no gate, to the bit; one that keeps nothing leaves each token its
// own value.
TEST_P(AttentionTest, OpenAndShutGates) {
  const auto backend = NewBackend(1);
  Random random(5);
  for (const AttentionKind kind : testing::kAllKinds) {
    for (const AttentionSpec& gated :
         testing::WithDecayGates({testing::MakeSpec(kind, 2, 10, 11, 8)})) {
      if (!gated.decay_gate) continue;
      AttentionSpec plain = gated;
      plain.decay_gate = false;
      Sequence sequence = testing::RandomSequence(gated, 30, &random);
      testing::AttentionRows& rows = sequence.layers[0];
      std::ranges::fill(rows.log_decay, 0.0f);
      EXPECT_EQ(testing::RunAlone(*backend, gated, sequence, {30}),
                testing::RunAlone(*backend, plain, sequence, {30}))
          << testing::Describe(gated);
      std::ranges::fill(rows.log_decay, -1000.0f);
      Sequence token{1, {rows}};
      const auto shut = testing::RunAlone(*backend, gated, sequence, {30});
      const auto alone = testing::RunAlone(*backend, gated, token, {1});
      for (int i = 0; i < 2 * gated.head_dim; ++i) EXPECT_EQ(shut[0][i], alone[0][i]);
      for (int t = 1; t < 30; ++t) {
        const auto slice = [&](std::vector<float>& values, const std::vector<float>& all) {
          const size_t width = all.size() / 30;
          values.assign(all.begin() + t * width, all.begin() + (t + 1) * width);
        };
        testing::AttentionRows& one = token.layers[0];
        slice(one.near_q, rows.near_q);
        slice(one.near_k, rows.near_k);
        slice(one.far_q, rows.far_q);
        slice(one.far_k, rows.far_k);
        slice(one.v, rows.v);
        const auto own = testing::RunAlone(*backend, gated, token, {1});
        for (int i = 0; i < 2 * gated.head_dim; ++i) {
          // The order of a sum of zeros and one term: only the sum in lanes may differ, and does
          // not round.
          EXPECT_EQ(shut[0][t * 2 * gated.head_dim + i], own[0][i])
              << testing::Describe(gated) << " token " << t;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionTest, ::testing::ValuesIn(testing::AllBackends()),
                         testing::ParamName);

// The reference with a float64 state rounds nothing but its result: the oracle of the oracle.
TEST(ReferenceAttentionTest, Float64StateIsExact) {
  const auto backend = NewReferenceBackend(true);
  Random random(3);
  std::vector<AttentionSpec> specs;
  for (const AttentionKind kind : testing::kAllKinds) {
    specs.push_back(testing::MakeSpec(kind, 2, 10, 11, 16));
  }
  specs = testing::WithDecayGates(specs);
  for (const AttentionSpec& spec : testing::GroupedSpecs()) specs.push_back(spec);
  for (AttentionSpec spec : testing::GroupedRecurrentSpecs()) {
    if (spec.state_format == StateFormat::kF32) specs.push_back(spec);
  }
  for (const AttentionSpec& spec : testing::WithStateFormats(testing::WindowSpecs())) {
    specs.push_back(spec);
  }
  for (const AttentionSpec& spec : testing::FarWindowSpecs()) specs.push_back(spec);
  for (const AttentionSpec& spec : specs) {
    const Sequence sequence = testing::RandomSequence(spec, 100, &random);
    const auto out = testing::RunAlone(*backend, spec, sequence, {100});
    const testing::OracleOutput want = testing::AttentionOracle(spec, sequence.layers[0], 100);
    for (size_t i = 0; i < want.value.size(); ++i) {
      // The features' sum cancels in float64: a 2^-24 part of what float32 would lose.
      ASSERT_NEAR(out[0][i], want.value[i],
                  kU * std::abs(want.value[i]) + 0x1p-24 * want.tolerance[i])
          << testing::Describe(spec) << " element " << i;
    }
  }
}

}  // namespace
}  // namespace polysketch
