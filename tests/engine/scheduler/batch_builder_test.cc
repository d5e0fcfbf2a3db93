#include "engine/scheduler/batch_builder.h"

#include <limits>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using Candidate = BatchBuilder::Candidate;
using testing::Random;
using Tokens = std::vector<int64_t>;

constexpr int64_t kNoBound = std::numeric_limits<int64_t>::max();

Candidate Prompt(int64_t ready) { return {.ready = ready}; }
Candidate Decoding(int64_t ready = 1) { return {.ready = ready, .decoding = true}; }

// Of one client.
Tokens Share(BatchBuilder* builder, std::vector<Candidate>& candidates, int64_t most = kNoBound) {
  std::vector<int64_t> times = {0};
  return builder->Share(candidates, most, times);
}
Tokens Share(BatchBuilder* builder, std::vector<Candidate>&& candidates, int64_t most = kNoBound) {
  return Share(builder, candidates, most);
}

TEST(BatchBuilderTest, DecodingFirstAndTheRestToPrompts) {
  BatchBuilder builder(512);
  EXPECT_EQ(Share(&builder, {Prompt(10000), Decoding(), Decoding()}), (Tokens{510, 1, 1}));
  EXPECT_EQ(Share(&builder, {}), Tokens{});
}

TEST(BatchBuilderTest, DraftsBeforePromptsButBehindEveryDecodingToken) {
  BatchBuilder builder(10);
  EXPECT_EQ(Share(&builder, {Decoding(5), Prompt(100), Decoding(), Decoding(4)}),
            (Tokens{5, 0, 1, 4}));
  EXPECT_EQ(Share(&builder, {Decoding(9), Prompt(100), Decoding(9)}), (Tokens{9, 0, 1}));
}

TEST(BatchBuilderTest, PromptsKeepTheirBound) {
  BatchBuilder builder(512);
  EXPECT_EQ(Share(&builder, {Prompt(1000), Decoding(), Prompt(1000)}, 30), (Tokens{30, 1, 0}));
  EXPECT_EQ(Share(&builder, {Prompt(10), Decoding(), Prompt(1000)}, 30), (Tokens{10, 1, 20}));
}

TEST(BatchBuilderTest, SurchargesCountOnce) {
  BatchBuilder builder(512);
  std::vector<Candidate> candidates = {Prompt(1000), Decoding(), Prompt(1000)};
  candidates[0].surcharge = 12;
  EXPECT_EQ(Share(&builder, candidates, 30), (Tokens{18, 1, 0}));
  candidates[0].surcharge = 100;  // not nothing, for ever
  EXPECT_EQ(Share(&builder, candidates, 30), (Tokens{0, 1, 30}));
  EXPECT_EQ(Share(&builder, candidates, 30), (Tokens{BatchBuilder::kMinTokens, 1, 0}));
  EXPECT_EQ(Share(&builder, candidates, 100), (Tokens{0, 1, 100}));
}

TEST(BatchBuilderTest, TokensCostWhatTheirDepthCosts) {
  BatchBuilder builder(512);
  std::vector<Candidate> candidates = {Prompt(1000), Decoding(), Prompt(1000)};
  candidates[0].cost = 8;
  EXPECT_EQ(Share(&builder, candidates, 80), (Tokens{10, 1, 0}));
  EXPECT_EQ(Share(&builder, candidates, 80), (Tokens{2, 1, 64})) << "a chunk, and the rest";
  candidates[0].cost = 1000;
  candidates[2].ready = 20;
  EXPECT_EQ(Share(&builder, candidates, 80), (Tokens{0, 1, 20}));
  EXPECT_EQ(Share(&builder, candidates, 80), (Tokens{BatchBuilder::kMinTokens, 1, 0}));
}

TEST(BatchBuilderTest, ShortPromptBesideLongOnesIsDoneAtOnce) {
  BatchBuilder builder(512);
  const Tokens tokens =
      Share(&builder, {Prompt(100000), Prompt(100000), Prompt(100000), Prompt(20)});
  EXPECT_EQ(tokens[3], 20);
  EXPECT_EQ(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}), 512);
}

TEST(BatchBuilderTest, ChunksAreNotTornToPieces) {
  BatchBuilder builder(512);
  for (const int64_t tokens : Share(&builder, std::vector<Candidate>(100, Prompt(1000))))
    EXPECT_TRUE(tokens == 0 || tokens == BatchBuilder::kMinChunk);
}

TEST(BatchBuilderTest, HigherLevelsFirst) {
  BatchBuilder builder(512);
  std::vector<Candidate> candidates = {Prompt(1000), Prompt(400), Prompt(1000)};
  candidates[1].level = 2;
  candidates[2].level = 1;
  EXPECT_EQ(Share(&builder, candidates), (Tokens{0, 400, 112}));
}

// Whatever their clients have had: a level counts among the prompts of a part only.
TEST(BatchBuilderTest, HigherPrioritiesFirst) {
  BatchBuilder builder(512);
  std::vector<Candidate> candidates = {Prompt(1000), Prompt(400), Prompt(1000)};
  for (size_t i = 0; i < candidates.size(); ++i) candidates[i].client = i;
  candidates[0].level = 5;
  candidates[1].priority = 2;
  candidates[2].priority = 1;
  std::vector<int64_t> times = {0, 5000, 3000};
  EXPECT_EQ(builder.Share(candidates, 512, times), (Tokens{0, 400, 112}));
}

TEST(BatchBuilderTest, ClientsShareEquallyHoweverManyPromptsTheyHave) {
  BatchBuilder builder(200);
  std::vector<Candidate> candidates(10, Prompt(1 << 20));
  candidates[9].client = 1;
  std::vector<int64_t> times = {1000, 1000};
  for (int step = 0; step < 100; ++step) builder.Share(candidates, 100, times);
  EXPECT_EQ(times[0] + times[1], 2000 + 100 * 100);
  EXPECT_NEAR(times[0], times[1], BatchBuilder::kMinChunk);
}

// A sequence waits for at most as many steps as its level and client have sequences.
TEST(BatchBuilderTest, EverybodyIsServedInTurn) {
  Random random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t budget = random.Int(1, 600);
    const auto count = static_cast<size_t>(random.Int(1, 40));
    BatchBuilder builder(budget);
    std::vector<Candidate> candidates(count);
    std::vector<int> waited(count, 0);
    for (int step = 0; step < 100; ++step) {
      int decoding = 0;
      for (size_t i = 0; i < count; ++i) {
        candidates[i].decoding = i % 3 == 0 && decoding + 1 < budget;
        decoding += candidates[i].decoding;
        candidates[i].ready = candidates[i].decoding ? 1 : random.Int(1, 2000);
      }
      const Tokens tokens = Share(&builder, candidates);
      int64_t total = 0, ready = 0;
      for (size_t i = 0; i < count; ++i) {
        ASSERT_GE(tokens[i], 0);
        ASSERT_LE(tokens[i], candidates[i].ready);
        EXPECT_TRUE(!candidates[i].decoding || tokens[i] == 1);
        waited[i] = tokens[i] > 0 ? 0 : waited[i] + 1;
        ASSERT_LE(waited[i], static_cast<int>(count));
        total += tokens[i];
        ready += candidates[i].ready;
      }
      ASSERT_EQ(total, std::min(budget, ready)) << "a step wastes nothing";
    }
  }
}

TEST(BatchBuilderTest, MoreDecodingThanTokensTakeTurns) {
  BatchBuilder builder(3);
  std::vector<Candidate> candidates(5, Decoding());
  EXPECT_EQ(Share(&builder, candidates), (Tokens{1, 1, 1, 0, 0}));
  EXPECT_EQ(Share(&builder, candidates), (Tokens{1, 0, 0, 1, 1}));
  EXPECT_EQ(Share(&builder, candidates), (Tokens{0, 1, 1, 1, 0}));
}

}  // namespace
}  // namespace polysketch
