#include "base/shares.h"

#include <string>

#include "gtest/gtest.h"

namespace polysketch {
namespace {

constexpr int64_t kPool = 1600;

// Takes one by one while it fits. Returns how many were taken.
int64_t Fill(Shares* shares, const Principal& who, bool first = false) {
  int64_t taken = 0;
  while (shares->Fits(who, 1, kPool - shares->total(), first)) {
    shares->Add(who, 1);
    ++taken;
  }
  return taken;
}

TEST(SharesTest, APrincipalLeavesRoomForOthers) {
  Shares shares;
  EXPECT_EQ(Fill(&shares, {"a"}), 1200);
  EXPECT_EQ(Shares::Alone(kPool), 1200);
  EXPECT_EQ(Fill(&shares, {"b"}), 300);
  EXPECT_EQ(Fill(&shares, {"c"}), 75);
  EXPECT_EQ(Fill(&shares, {"a"}), 0);
  EXPECT_EQ(shares.size(), 3);
  shares.Remove({"a"}, 1200);
  EXPECT_EQ(shares.size(), 2);
  EXPECT_EQ(shares.Of({"a"}), (Shares::Held{0, 0}));
}

TEST(SharesTest, APrincipalOfManyPartsTakesNoMore) {
  Shares shares;
  int64_t taken = 0;
  for (int part = 0; part < 1000; ++part) taken += Fill(&shares, {"a", std::to_string(part)});
  EXPECT_LE(taken, 1200);
  EXPECT_GE(Fill(&shares, {"b"}), 300);
}

TEST(SharesTest, APartLeavesRoomForOthersOfItsPrincipal) {
  Shares shares;
  EXPECT_EQ(Fill(&shares, {"a", "first"}), 900);  // nine sixteenths
  EXPECT_EQ(Fill(&shares, {"a", "second"}), 225);
  EXPECT_EQ(Fill(&shares, {"a", "third"}), 56);
  EXPECT_GT(Fill(&shares, {"b"}), 300);
}

TEST(SharesTest, TheFirstNeedsToFitOnly) {
  Shares shares;
  EXPECT_FALSE(shares.Fits({"a"}, 1500, kPool));
  EXPECT_TRUE(shares.Fits({"a"}, 1500, kPool, /*first=*/true));
  EXPECT_TRUE(shares.Fits({"a", "part"}, 1600, kPool, /*first=*/true));
  EXPECT_FALSE(shares.Fits({"a"}, 1601, kPool, /*first=*/true));
  shares.Add({"a", "part"}, 1500);
  EXPECT_FALSE(shares.Fits({"a", "part"}, 1, 100, /*first=*/true));
  EXPECT_FALSE(shares.Fits({"a", "other"}, 1, 100, /*first=*/true))
      << "its principal has its share";
  EXPECT_TRUE(shares.Fits({"b"}, 100, 100, /*first=*/true));
}

TEST(SharesTest, OneThatHoldsMoreGivesWay) {
  Shares shares;
  shares.Add({"a", "1"}, 3);
  shares.Add({"a", "2"}, 4);
  shares.Add({"b", "1"}, 5);
  EXPECT_TRUE(shares.HoldsMore({"a", "1"}, {"b", "1"}, 1)) << "its principal holds 7, the other 6";
  EXPECT_FALSE(shares.HoldsMore({"a", "1"}, {"b", "1"}, 2));
  EXPECT_FALSE(shares.HoldsMore({"b", "1"}, {"a", "3"}, 1)) << "however little the part holds";
  EXPECT_TRUE(shares.HoldsMore({"a", "2"}, {"a", "3"}, 3));
  EXPECT_FALSE(shares.HoldsMore({"a", "1"}, {"a", "3"}, 3));
  EXPECT_FALSE(shares.HoldsMore({"a", "2"}, {"a", "2"}, 0)) << "itself";
}

TEST(SharesTest, OneIsAboveAnEqualShareOfWhatAllExceed) {
  Shares shares;
  shares.Add({"a", "1"}, 60);
  shares.Add({"a", "2"}, 10);
  shares.Add({"b"}, 40);
  EXPECT_TRUE(shares.AboveEqual({"a", "1"}, 100));
  EXPECT_FALSE(shares.AboveEqual({"a", "2"}, 100));
  EXPECT_FALSE(shares.AboveEqual({"b"}, 100));
  EXPECT_FALSE(shares.AboveEqual({"c"}, 100));
}

}  // namespace
}  // namespace polysketch
