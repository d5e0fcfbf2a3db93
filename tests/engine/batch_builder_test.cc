#include "engine/scheduler/batch_builder.h"

#include <map>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using Candidate = BatchBuilder::Candidate;
using testing::Random;

std::vector<int64_t> Share(BatchBuilder* builder, const std::vector<Candidate>& candidates) {
  std::vector<int64_t> tokens;
  builder->Share(candidates, &tokens);
  return tokens;
}

TEST(BatchBuilderTest, DecodingFirstAndTheRestToPrompts) {
  BatchBuilder builder(512);
  EXPECT_EQ(Share(&builder, {{1, 10000, false}, {2, 1, true}, {3, 1, true}}),
            (std::vector<int64_t>{510, 1, 1}));
  EXPECT_EQ(Share(&builder, {}), std::vector<int64_t>{});
}

TEST(BatchBuilderTest, ShortPromptBesideLongOnesIsDoneAtOnce) {
  BatchBuilder builder(512);
  const auto tokens =
      Share(&builder, {{1, 100000, false}, {2, 100000, false}, {3, 100000, false}, {4, 20, false}});
  EXPECT_EQ(tokens[3], 20);
  EXPECT_EQ(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}), 512);
}

TEST(BatchBuilderTest, ChunksAreNotTornToPieces) {
  BatchBuilder builder(512);
  std::vector<Candidate> candidates;
  for (uint64_t id = 1; id <= 100; ++id) candidates.push_back({id, 1000, false});
  for (const int64_t tokens : Share(&builder, candidates))
    EXPECT_TRUE(tokens == 0 || tokens == BatchBuilder::kMinChunk);
}

TEST(BatchBuilderTest, EverybodyIsServedInTurn) {
  Random random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t budget = random.Int(1, 600);
    const auto count = static_cast<size_t>(random.Int(1, 40));
    BatchBuilder builder(budget);
    std::map<uint64_t, int> waited;
    for (int step = 0; step < 100; ++step) {
      std::vector<Candidate> candidates;
      int decoding = 0;
      for (uint64_t id = 1; id <= count; ++id) {
        const bool decodes = id % 3 == 0 && decoding + 1 < budget;
        decoding += decodes;
        candidates.push_back({id, decodes ? 1 : random.Int(1, 2000), decodes});
      }
      const auto tokens = Share(&builder, candidates);
      int64_t total = 0, ready = 0;
      for (size_t i = 0; i < count; ++i) {
        ASSERT_GE(tokens[i], 0);
        ASSERT_LE(tokens[i], candidates[i].ready);
        EXPECT_TRUE(!candidates[i].decoding || tokens[i] == 1);
        waited[candidates[i].id] = tokens[i] > 0 ? 0 : waited[candidates[i].id] + 1;
        ASSERT_LE(waited[candidates[i].id], static_cast<int>(count));
        total += tokens[i];
        ready += candidates[i].ready;
      }
      ASSERT_EQ(total, std::min(budget, ready)) << "a step wastes nothing";
    }
  }
}

TEST(BatchBuilderTest, MoreDecodingThanTokensTakeTurns) {
  BatchBuilder builder(3);
  const std::vector<Candidate> candidates = {
      {1, 1, true}, {2, 1, true}, {3, 1, true}, {4, 1, true}, {5, 1, true}};
  EXPECT_EQ(Share(&builder, candidates), (std::vector<int64_t>{1, 1, 1, 0, 0}));
  EXPECT_EQ(Share(&builder, candidates), (std::vector<int64_t>{1, 0, 0, 1, 1}));
  EXPECT_EQ(Share(&builder, candidates), (std::vector<int64_t>{0, 1, 1, 1, 0}));
}

}  // namespace
}  // namespace polysketch
