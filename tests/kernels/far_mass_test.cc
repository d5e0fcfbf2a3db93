// Far masses of every backend against the definition in float64. If the values of the tokens before
// a block are 1 and those from it on are 0, the outputs of its queries are their far masses.
#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>
#include "kernels/backend.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/attention_oracle.h"
#include "tests/testing/backend_test.h"

namespace polysketch {
namespace {

using testing::Random;
using testing::Sequence;

class FarMassTest : public testing::BackendTest {};

// The far masses of all queries [tokens, heads] of a sequence that runs in `parts`. Checks that the
// outputs are those without far masses.
std::vector<float> FarMasses(Backend& backend, const AttentionSpec& spec, const Sequence& sequence,
                             const std::vector<int>& parts) {
  std::vector<float> all;
  const auto attend = [&](int layer, std::span<const Segment> segments, AttentionInput input,
                          float* out) {
    std::vector<float> masses(static_cast<size_t>(segments[0].rows) * spec.heads, NAN);
    input.far_mass = masses.data();
    backend.Attention(spec, layer, segments, input, out);
    all.insert(all.end(), masses.begin(), masses.end());
  };
  const auto outputs = testing::RunAlone(backend, spec, sequence, parts, attend);
  EXPECT_EQ(outputs, testing::RunAlone(backend, spec, sequence, parts)) << testing::Describe(spec);
  return all;
}

std::vector<AttentionSpec> Specs() {
  std::vector<AttentionSpec> specs = testing::GroupedRecurrentSpecs();
  for (const AttentionKind kind : testing::kAllKinds) {
    for (const int block : {1, 16}) {
      const AttentionSpec spec = testing::MakeSpec(kind, 2, 10, 11, block);
      if (!spec.kv_cache()) specs.push_back(spec);
    }
  }
  specs = testing::WithDecayGates(testing::WithStateFormats(specs));
  for (const AttentionSpec& spec : testing::WithStateFormats(testing::FarWindowSpecs())) {
    specs.push_back(spec);
  }
  return specs;
}

// Tokens after which the far part changes.
int Period(const AttentionSpec& spec) { return spec.far_part() ? spec.window : spec.block; }

TEST_P(FarMassTest, IsItsDefinition) {
  // In the order of the loops, which every backend runs alike: most of this test's time.
  static std::vector<testing::OracleOutput> definitions;
  size_t definition = 0;
  const auto backend = NewBackend(2);
  Random random(1);
  for (const AttentionSpec& spec : Specs()) {
    const int period = Period(spec), tokens = 3 * period + 5, d = spec.head_dim;
    const Sequence sequence = testing::RandomSequence(spec, tokens, &random);
    const std::vector<float> masses = FarMasses(*backend, spec, sequence, {tokens});
    ASSERT_EQ(masses.size(), static_cast<size_t>(tokens) * spec.heads);
    for (const int part : {0, (tokens - 1) / period - 1}) {
      const int first = part * period, last = std::min(first + period, tokens);
      const int far_first = spec.far_part() ? spec.sinks : 0;
      const int far_last = spec.far_part() ? first - period : first;
      testing::AttentionRows rows = sequence.layers[0];
      for (size_t i = 0; i < rows.v.size(); ++i) {
        const int token = static_cast<int>(i) / (spec.key_heads() * d);
        rows.v[i] = token >= far_first && token < far_last ? 1 : 0;
      }
      if (definition == definitions.size()) {
        definitions.push_back(testing::AttentionOracle(spec, rows, last));
      }
      const testing::OracleOutput& want = definitions[definition++];
      for (int query = first * spec.heads; query < last * spec.heads; ++query) {
        // Sums of weights do not read S, but the near weights read what the block keeps.
        const size_t i = static_cast<size_t>(query) * d;
        const double read = spec.state_format == StateFormat::kQ8 ? want.byte_tolerance[i] : 0;
        ASSERT_NEAR(masses[query], want.value[i], want.tolerance[i] + read)
            << testing::Describe(spec) << " token " << query / spec.heads;
        ASSERT_TRUE(far_last > far_first || masses[query] == 0) << "no block before";
      }
    }
  }
}

TEST_P(FarMassTest, AnySplitAndThreads) {
  const auto one = NewBackend(1), several = NewBackend(3);
  Random random(2);
  for (const AttentionSpec& spec : Specs()) {
    const int tokens = 3 * Period(spec) + 5;
    const Sequence sequence = testing::RandomSequence(spec, tokens, &random);
    const std::vector<float> whole = FarMasses(*one, spec, sequence, {tokens});
    EXPECT_EQ(FarMasses(*several, spec, sequence, {tokens}), whole) << testing::Describe(spec);
    EXPECT_EQ(FarMasses(*one, spec, sequence, std::vector<int>(tokens, 1)), whole)
        << testing::Describe(spec);
    EXPECT_EQ(FarMasses(*several, spec, sequence, random.Split(tokens)), whole)
        << testing::Describe(spec);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, FarMassTest, ::testing::ValuesIn(testing::AllBackends()),
                         testing::ParamName);

}  // namespace
}  // namespace polysketch
