// Loss by depth against means and standard errors computed by hand.
#include "clients/cpp/depth_losses.h"

#include <cmath>

#include "gtest/gtest.h"

namespace polysketch {
namespace {

// `deep` and `fresh` of every token from `begin` to `end` - 1.
void AddRun(int64_t begin, int64_t end, double deep, double fresh, DepthLosses* losses) {
  for (int64_t depth = begin; depth < end; ++depth) losses->Add(depth, deep, fresh);
}

TEST(DepthLossesTest, MeansAndErrorsOfWholeBlocks) {
  DepthLosses losses({0, 4 * 512});
  AddRun(0, 512, 1, 2, &losses);
  AddRun(512, 1024, 3, 3, &losses);
  AddRun(1024, 1536, 5, 7, &losses);
  AddRun(1536, 2048, 7, 8, &losses);
  ASSERT_EQ(losses.Buckets().size(), 1u);
  const DepthBucket bucket = losses.Buckets()[0];
  EXPECT_EQ(bucket.tokens, 2048);
  // Blocks of 1, 3, 5, 7: the deviations -3, -1, 1, 3 have the variance 20 / 3; four of them.
  EXPECT_DOUBLE_EQ(bucket.deep.mean, 4);
  EXPECT_DOUBLE_EQ(bucket.deep.standard_error, std::sqrt(20.0 / 3 / 4));
  // 2, 3, 7, 8: -3, -2, 2, 3.
  EXPECT_DOUBLE_EQ(bucket.fresh.mean, 5);
  EXPECT_DOUBLE_EQ(bucket.fresh.standard_error, std::sqrt(26.0 / 3 / 4));
  // Pairs: -1, 0, -2, -1. Far smaller than the errors of the columns.
  EXPECT_DOUBLE_EQ(bucket.difference.mean, -1);
  EXPECT_DOUBLE_EQ(bucket.difference.standard_error, std::sqrt(2.0 / 3 / 4));
}

// The tokens of a block count as one value, however they differ.
TEST(DepthLossesTest, ErrorsAreOfBlocksNotOfTokens) {
  DepthLosses losses({0, 1024});
  for (int64_t depth = 0; depth < 1024; ++depth) losses.Add(depth, depth % 2 == 0 ? 0 : 10, 0);
  const DepthBucket bucket = losses.Total();
  EXPECT_DOUBLE_EQ(bucket.deep.mean, 5);
  EXPECT_DOUBLE_EQ(bucket.deep.standard_error, 0);
}

// Two blocks of 256 and 512 tokens at 2 and 5: the mean is (512 + 2560) / 768 = 4, the deviations
// of the sums -2 * 256 and 1 * 512, the error sqrt(2 * (512^2 + 512^2)) / 768 = 4 / 3.
TEST(DepthLossesTest, AShorterBlockWeighsLess) {
  DepthLosses losses({256, 1024});
  AddRun(256, 512, 2, 0, &losses);
  AddRun(512, 1024, 5, 0, &losses);
  EXPECT_DOUBLE_EQ(losses.Total().deep.mean, 4);
  EXPECT_DOUBLE_EQ(losses.Total().deep.standard_error, 4.0 / 3);
}

TEST(DepthLossesTest, BucketsLieBetweenEdges) {
  DepthLosses losses({1, 512, 700, 5000});
  AddRun(0, 512, 1, 1, &losses);
  AddRun(512, 700, 2, 1, &losses);
  AddRun(700, 800, 4, 1, &losses);
  const auto buckets = losses.Buckets();
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[0].begin, 1);
  EXPECT_EQ(buckets[0].end, 512);
  EXPECT_EQ(buckets[0].tokens, 511) << "depth 0 is before the first edge";
  EXPECT_TRUE(std::isnan(buckets[0].deep.standard_error)) << "one block says nothing of its error";
  EXPECT_EQ(buckets[1].tokens, 188);
  EXPECT_EQ(buckets[1].deep.mean, 2);
  EXPECT_EQ(buckets[2].tokens, 100);
  EXPECT_EQ(buckets[2].end, 800) << "the text ends there";
  EXPECT_EQ(buckets[2].difference.mean, 3);
  const DepthBucket total = losses.Total();
  EXPECT_EQ(total.tokens, 799);
  EXPECT_EQ(total.end, 800);
  EXPECT_DOUBLE_EQ(total.deep.mean, (511 + 2 * 188 + 4 * 100) / 799.0);
  losses.Add(5000, 1, 1);
  EXPECT_EQ(losses.Total().tokens, 799) << "the last edge is not inside";
}

// Only the buckets that were reached are there, and a bucket in the middle may be empty.
TEST(DepthLossesTest, SkipsBucketsWithoutTokens) {
  DepthLosses losses({0, 512, 1024, 2048, 4096});
  EXPECT_TRUE(losses.Buckets().empty());
  EXPECT_EQ(losses.Total().tokens, 0);
  AddRun(100, 200, 1, 1, &losses);
  AddRun(1030, 1040, 3, 1, &losses);
  const auto buckets = losses.Buckets();
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[1].begin, 1024);
  EXPECT_EQ(buckets[1].tokens, 10);
}

TEST(DepthLossesTest, DefaultEdgesAreDoubles) {
  const auto edges = DefaultDepthEdges();
  EXPECT_EQ(edges[0], 1);
  EXPECT_EQ(edges[1], 512);
  for (size_t i = 2; i < edges.size(); ++i) EXPECT_EQ(edges[i], 2 * edges[i - 1]);
  EXPECT_GT(edges.back(), int64_t{1} << 40);
}

}  // namespace
}  // namespace polysketch
