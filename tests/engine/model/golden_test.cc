// Whole models against logits recorded from the authors' code (tests/data/goldens), on every
// backend: by one-shot prefill, token by token, and under random splits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/new_backend.h"
#include "tests/engine/model/golden.h"
#include "tests/engine/model/model_runner.h"
#include "tests/testing/backend_test.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Count;
using testing::Golden;
using testing::GoldenFolder;
using testing::kGoldenCases;
using testing::MaxError;
using testing::Random;
using testing::ReadGoldens;

class GoldenTest : public testing::BackendTest {};

TEST_P(GoldenTest, LogitsUnderAnySplit) {
  const auto backend = NewBackend(1);
  Random random(1);
  // The reference is slow, and its attention trivially takes one token after the other.
  const int splits = Count(GetParam() == "reference" ? 4 : 20, 20);
  for (const std::string name : kGoldenCases) {
    const auto model = testing::LoadModel(GoldenFolder(name), backend.get());
    double worst = 0;  // in tolerances
    for (const Golden& recording : ReadGoldens(name)) {
      const int length = static_cast<int>(recording.tokens.size());
      std::vector<std::vector<int>> all_parts = {{length}, std::vector<int>(length, 1)};
      for (int i = 0; i < splits; ++i) all_parts.push_back(random.Split(length));
      for (const std::vector<int>& parts : all_parts) {
        const std::vector<float> logits = testing::LogitsOf(*model, recording.tokens, parts);
        const double error = MaxError(logits, recording.logits);
        EXPECT_LE(error, recording.tolerance()) << name << ::testing::PrintToString(parts);
        worst = std::max(worst, error / recording.tolerance());
      }
    }
    RecordProperty(name, std::to_string(worst));
  }
}

TEST_P(GoldenTest, NextLogprobs) {
  const auto backend = NewBackend(1);
  for (const std::string name : kGoldenCases) {
    const auto model = testing::LoadModel(GoldenFolder(name), backend.get());
    for (const Golden& recording : ReadGoldens(name)) {
      const int length = static_cast<int>(recording.tokens.size());
      const std::vector<double> logprobs = testing::NextLogprobs(
          *model, recording.tokens, testing::LogitsOf(*model, recording.tokens, {length}));
      ASSERT_EQ(logprobs.size(), recording.next_logprobs.size());
      for (size_t i = 0; i < logprobs.size(); ++i) {
        // A logit and the logarithm of a sum over logits: each moves by at most the tolerance.
        ASSERT_NEAR(logprobs[i], recording.next_logprobs[i], 2 * recording.tolerance())
            << name << " token " << i;
      }
    }
  }
}

class NarrowGoldenTest : public testing::IsaTest {};

// Square root of the mean of the squared errors of all logits of a case.
double LogitError(LanguageModel& model, const std::vector<Golden>& recordings, Random* random) {
  double sum = 0, count = 0;
  for (const Golden& recording : recordings) {
    const int length = static_cast<int>(recording.tokens.size());
    const std::vector<float> logits =
        testing::LogitsOf(model, recording.tokens, random->Split(length));
    for (size_t i = 0; i < logits.size(); ++i) {
      sum += std::pow(static_cast<double>(logits[i]) - recording.logits[i], 2);
    }
    count += static_cast<double>(logits.size());
  }
  return std::sqrt(sum / count);
}

// Formats of 4 and 8 bits are as far from the recorded logits as the reference is, which rounds to
// the same integers and computes in float64 with them. Where an integer of an activation is near a
// half, float32 rounds it the other way, and later ones follow. Such differences have nothing to do
// with the errors, so their squares add: as much as 0.3 of an error would change its size by 5%.
TEST_P(NarrowGoldenTest, ErrorsAreTheReferences) {
  const auto backend = NewBackend(1);
  const auto reference = NewReferenceBackend();
  Random random(6);
  using Formats = std::pair<std::optional<DataType>, StateFormat>;
  for (const std::string name : kGoldenCases) {
    const std::vector<Golden> recordings = ReadGoldens(name);
    for (const auto& [weights, state] : {Formats{{}, StateFormat::kQ8},
                                         {DataType::kQ8, StateFormat::kF32},
                                         {DataType::kQ8, StateFormat::kQ8},
                                         {DataType::kQ4, StateFormat::kQ8}}) {
      LoadOptions options;
      options.weights = weights;
      options.state_format = state;
      const auto model = testing::LoadModel(GoldenFolder(name), backend.get(), options);
      const auto expected = testing::LoadModel(GoldenFolder(name), reference.get(), options);
      const double got = LogitError(*model, recordings, &random);
      const double want = LogitError(*expected, recordings, &random);
      EXPECT_GT(want, recordings[0].tolerance()) << name << ": nothing is rounded";
      EXPECT_NEAR(got, want, 0.05 * want)
          << name << " weights " << (weights ? DataTypeName(*weights) : "f32") << " state "
          << StateFormatName(state);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, NarrowGoldenTest, ::testing::ValuesIn(testing::TestedIsas()),
                         testing::ParamName);

class GreedyTest : public testing::IsaTest {};

// The greedy choice after every recorded prefix, and greedy continuations of a prompt, against the
// reference: the same wherever its margin exceeds twice the tolerance.
TEST_P(GreedyTest, TokensAreTheReferences) {
  const auto backend = NewBackend(1);
  const auto reference = NewReferenceBackend();
  for (const std::string name : kGoldenCases) {
    const auto model = testing::LoadModel(GoldenFolder(name), backend.get());
    const auto reference_model = testing::LoadModel(GoldenFolder(name), reference.get());
    const int vocab = model->vocab_size();
    for (const Golden& recording : ReadGoldens(name)) {
      const int length = static_cast<int>(recording.tokens.size());
      const std::vector<float> got = testing::LogitsOf(*model, recording.tokens, {length});
      const std::vector<float> want =
          testing::LogitsOf(*reference_model, recording.tokens, {length});
      int compared = 0;
      for (int i = 0; i < length; ++i) {
        const testing::Best expected = testing::BestOf({&want[i * vocab], size_t(vocab)});
        if (expected.margin <= 2 * recording.tolerance()) continue;
        EXPECT_EQ(testing::BestOf({&got[i * vocab], size_t(vocab)}).token, expected.token)
            << name << " position " << i;
        ++compared;
      }
      EXPECT_GT(compared, length * 9 / 10) << "hardly anything was compared";

      testing::Request mine(*model, recording.tokens);
      testing::Request theirs(*reference_model, recording.tokens);
      for (int i = 0; i < Count(12, 24); ++i) {
        testing::StepRequests(*model, {{&mine, mine.left(), false}});
        testing::StepRequests(*reference_model, {{&theirs, theirs.left(), false}});
        const testing::Best expected =
            testing::BestOf({&theirs.logits[theirs.logits.size() - vocab], size_t(vocab)});
        if (expected.margin <= 2 * recording.tolerance()) break;  // from here on they may differ
        EXPECT_EQ(testing::BestOf({&mine.logits[mine.logits.size() - vocab], size_t(vocab)}).token,
                  expected.token)
            << name << " continuation " << i;
        mine.tokens.push_back(expected.token);
        theirs.tokens.push_back(expected.token);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, GreedyTest, ::testing::ValuesIn(testing::TestedIsas()),
                         testing::ParamName);
INSTANTIATE_TEST_SUITE_P(Backends, GoldenTest, ::testing::ValuesIn(testing::AllBackends()),
                         testing::ParamName);

}  // namespace
}  // namespace polysketch
