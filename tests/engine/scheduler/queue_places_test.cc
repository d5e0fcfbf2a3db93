// Who gets a place in a full queue, and who gives one up.
#include "engine/scheduler/queue_places.h"

#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Random;
using Ids = std::vector<RequestId>;

class QueuePlacesTest : public ::testing::Test {
 protected:
  Result<Ids> Add(QueuePlaces* places, const std::string& client, int priority = 0, int slots = 1,
                  int64_t tokens = 1) {
    return places->Add({++last_, {client}, priority, slots, tokens});
  }
  // Adds `count` requests that displace no other request.
  void Fill(QueuePlaces* places, const std::string& client, int count, int priority = 0) {
    for (int i = 0; i < count; ++i) {
      const Result<Ids> added = Add(places, client, priority);
      ASSERT_TRUE(added.ok()) << added.status().ToString();
      ASSERT_TRUE(added->empty());
    }
  }
  RequestId last_ = 0;
};

TEST_F(QueuePlacesTest, NewestOfTheLargestClientGivesWayUntilSharesAreEqual) {
  QueuePlaces places({.max_sequences = 2, .max_queue = 8});
  Fill(&places, "large", 6);  // 1 to 6
  Fill(&places, "small", 4);  // 7 to 10
  places.OnAdmitted(1);
  EXPECT_EQ(*Add(&places, "new"), Ids{6});
  EXPECT_EQ(*Add(&places, "new"), Ids{5});
  // 4, 4 and 2: the next is of one of the clients with 4, whose newest give way.
  EXPECT_EQ(Add(&places, "new")->size(), 1u);
  // One client has 4, two have 3. A request that would make it the largest is refused.
  EXPECT_EQ(Add(&places, "large").status().code(), Code::kResourceExhausted);
  EXPECT_EQ(Add(&places, "new").status().code(), Code::kResourceExhausted);
}

TEST_F(QueuePlacesTest, ARequestThatHasHadASlotKeepsItsPlace) {
  QueuePlaces places({.max_sequences = 2, .max_queue = 1});
  Fill(&places, "t", 3);
  places.OnAdmitted(1);
  places.OnAdmitted(2);
  EXPECT_EQ(*Add(&places, "u"), Ids{3});
  EXPECT_EQ(Add(&places, "v").status().message(),
            "the queue is full: 2 running and 1 waiting requests; try again later");
  // 3 got its slot before it was told: its place counts until it ends.
  places.OnAdmitted(3);
  places.Remove(4);
  EXPECT_FALSE(Add(&places, "t").ok());
  places.Remove(3);
  EXPECT_TRUE(Add(&places, "v").ok());
}

// Many tenants of an address take turns in the slots, so that none of its requests waits.
TEST_F(QueuePlacesTest, PreemptedRequestsLeavePlacesToOthers) {
  QueuePlaces places({.max_sequences = 2, .max_queue = 8});
  for (RequestId id = 1; id <= 10; ++id) {
    ASSERT_TRUE(places.Add({id, {"address", StrCat("tenant-", id)}, 0, 1, 1}).ok());
    places.OnAdmitted(id);
  }
  EXPECT_FALSE(places.Add({11, {"address", "tenant-11"}, 0, 1, 1}).ok());
  EXPECT_TRUE(places.Add({12, {"b"}, 0, 1, 1})->empty());
  EXPECT_FALSE(places.Add({13, {"b"}, 0, 1, 1}).ok()) << "it has one";
  EXPECT_FALSE(places.Add({14, {"c"}, 0, 2, 1}).ok()) << "one is left";
  EXPECT_TRUE(places.Add({15, {"c"}, 0, 1, 1})->empty());
  EXPECT_FALSE(places.Add({16, {"d"}, 0, 1, 1}).ok());
  places.Remove(12);
  EXPECT_TRUE(places.Add({17, {"d"}, 0, 1, 1})->empty());
  // The reserve is for what cannot be taken back alone.
  for (RequestId id = 1; id <= 9; ++id) places.Remove(id);
  EXPECT_TRUE(places.Add({18, {"address", "tenant-11"}, 0, 7, 1})->empty());
  EXPECT_EQ(*places.Add({19, {"e"}, 0, 1, 1}), Ids{18});
}

TEST_F(QueuePlacesTest, PrioritiesAboveTheNewcomersDoNotGiveWay) {
  QueuePlaces places({.max_sequences = 1, .max_queue = 5});
  Fill(&places, "t", 3, /*priority=*/2);  // 1 to 3
  Fill(&places, "t", 3, /*priority=*/0);  // 4 to 6
  EXPECT_FALSE(Add(&places, "u", /*priority=*/-1).ok());
  EXPECT_EQ(*Add(&places, "u"), Ids{6}) << "the newest of the lowest priority";
  EXPECT_EQ(*Add(&places, "u"), Ids{5});
  EXPECT_EQ(places.Add({++last_, {"v"}, 0, 2, 1}).status().code(), Code::kResourceExhausted)
      << "only one more may give way, and two are needed";
  EXPECT_EQ(*Add(&places, "v"), Ids{4}) << "after a refusal nothing has changed";
  EXPECT_EQ(*Add(&places, "w"), Ids{9}) << "t has more, of a higher priority";
  EXPECT_FALSE(Add(&places, "x").ok());
  EXPECT_EQ(*Add(&places, "x", /*priority=*/2), Ids{3});
}

TEST_F(QueuePlacesTest, AClientKeepsItsOnlyRequest) {
  QueuePlaces places({.max_sequences = 1, .max_queue = 1, .max_tokens = 1000});
  ASSERT_TRUE(Add(&places, "t", 0, /*slots=*/2).ok());
  EXPECT_FALSE(Add(&places, "u").ok());
}

TEST_F(QueuePlacesTest, TokensAreSharedAsPlacesAre) {
  QueuePlaces places({.max_sequences = 1, .max_queue = 99, .max_tokens = 100});
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Add(&places, "t", 0, 1, 25)->empty());
  EXPECT_EQ(*Add(&places, "u", 0, 1, 50), Ids({4, 3}));
  EXPECT_FALSE(Add(&places, "t", 0, 1, 1).ok()) << "both have 50";
  // A client without a waiting prompt gets its share beyond the limit.
  EXPECT_TRUE(Add(&places, "v", 0, 1, 33)->empty());
  EXPECT_FALSE(Add(&places, "v", 0, 1, 33).ok());
  // Admitted prompts do not wait.
  for (const RequestId id : {1, 2, 5}) places.OnAdmitted(id);
  EXPECT_TRUE(Add(&places, "t", 0, 1, 60)->empty());
}

TEST_F(QueuePlacesTest, AHugePromptDoesNotLockOutOthers) {
  QueuePlaces places({.max_sequences = 1, .max_queue = 99, .max_tokens = 100});
  ASSERT_TRUE(Add(&places, "t", 0, 1, 5000).ok()) << "no other one waits";
  EXPECT_TRUE(Add(&places, "u", 0, 1, 50)->empty());
  EXPECT_FALSE(Add(&places, "u", 0, 1, 50).ok());
  EXPECT_FALSE(Add(&places, "t", 0, 1, 1).ok());
}

// Clients that ask for different amounts converge to equal shares, whatever the order.
TEST_F(QueuePlacesTest, SharesOfAnyDemandAreMaxMinFair) {
  Random random(3);
  for (int round = 0; round < 20; ++round) {
    QueuePlaces places({.max_sequences = 4, .max_queue = 36});
    std::map<std::string, int> demand = {{"a", 200}, {"b", 200}, {"c", 5}, {"d", 30}};
    std::map<std::string, int> held;
    std::map<RequestId, std::string> clients;
    for (int i = 0; i < 3000; ++i) {
      auto at = std::next(demand.begin(), random.Int(0, 3));
      const auto& [client, most] = *at;
      if (held[client] >= most) continue;
      const Result<Ids> added = Add(&places, client);
      if (!added.ok()) continue;
      clients[last_] = client;
      ++held[client];
      for (const RequestId id : *added) --held[clients.at(id)];
      int sum = 0;
      for (const auto& [name, count] : held) sum += count;
      ASSERT_LE(sum, 40);
    }
    EXPECT_EQ(held["c"], 5);  // asks for less than its share
    for (const char* client : {"a", "b", "d"}) EXPECT_NEAR(held[client], 35 / 3.0, 1) << client;
  }
}

}  // namespace
}  // namespace polysketch
