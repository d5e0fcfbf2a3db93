#include "base/turns.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace polysketch {
namespace {

TEST(TurnsTest, NobodySavesUpAndNobodyEscapes) {
  Turns turns;
  const Principal busy{"busy"}, idle{"idle"};
  turns.Charge(busy, 1000);
  EXPECT_LT(turns.Of(idle), turns.Of(busy));
  turns.Charge({"third"}, 900);
  turns.AdvanceTo(std::vector<Principal>{busy, {"third"}},
                  std::identity());  // "idle" wants nothing
  EXPECT_EQ(turns.Of(idle).principal, 900);
  EXPECT_EQ(turns.Of(busy).principal, 1000);
  turns.Charge(idle, 50);
  EXPECT_EQ(turns.size(), 2u);
  turns.AdvanceTo(std::vector<Principal>{busy},
                  std::identity());  // no principal is ahead: nothing to remember
  EXPECT_EQ(turns.size(), 0u);
}

// Principals and parts that always have work get equal turns, whatever the number of parts.
TEST(TurnsTest, PartsShareTheTurnsOfTheirPrincipal) {
  Turns turns;
  std::vector<Principal> all = {{"few", "1"}, {"few", "2"}};
  for (int part = 0; part < 10; ++part) all.push_back({"many", std::to_string(part)});
  std::map<Principal, int> served;
  for (int turn = 0; turn < 4000; ++turn) {
    const auto next = std::min_element(all.begin(), all.end(), [&](const auto& a, const auto& b) {
      return turns.Of(a) < turns.Of(b);
    });
    ++served[*next];
    turns.Charge(*next, 1);
    turns.AdvanceTo(all, std::identity());
  }
  for (const auto& [who, count] : served)
    EXPECT_NEAR(count, who.name == "few" ? 1000 : 200, 2) << who.name << " " << who.part;
}

}  // namespace
}  // namespace polysketch
