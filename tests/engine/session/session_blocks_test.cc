// Session memory of states that share blocks: a block counts once.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/session/session_table.h"
#include "gtest/gtest.h"
#include "tests/engine/session/small_snapshot.h"
#include "tests/engine/testing/block_states.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using namespace std::chrono_literals;

using testing::BlockStates;
using testing::kVocab;
using testing::Random;

constexpr size_t kBlock = size_t{1} << 30;      // nothing is allocated
constexpr size_t kSnapshots = size_t{1} << 20;  // more than what all snapshots take beside blocks

std::shared_ptr<const Snapshot> Of(std::shared_ptr<const SavedState> state) {
  auto snapshot = std::make_shared<Snapshot>(*testing::At(2));
  snapshot->state = std::move(state);
  return snapshot;
}

std::unique_ptr<SessionTable> NewTable(size_t memory) {
  SessionOptions options;
  options.codec.binding.numerics = "test";
  options.codec.limits = {{kVocab, 1000, true}, 1 << 20};
  options.memory = memory;
  options.state_bytes = [](int64_t tokens) { return static_cast<size_t>(tokens) * kBlock + 1000; };
  return std::make_unique<SessionTable>(std::move(options));
}

// As conversations by previous_response_id: each turn forks the session of the turn before.
TEST(SessionBlocksTest, TheForksOfAConversationCountItsBlocksOnce) {
  BlockStates states(kBlock);
  const auto table = NewTable(24 * kBlock);
  const SessionUser user = {"", {"client"}};
  std::shared_ptr<const Snapshot> last;
  for (size_t turn = 1; turn <= 10; ++turn) {
    const std::string id = table->Create(user, false, 0s, last)->id;
    auto lease = table->Acquire(user, id, std::nullopt);
    ASSERT_TRUE(lease.ok());
    last = Of(states.Make(10, last == nullptr ? nullptr : last->state.get(), turn - 1, turn, 100));
    const auto committed = table->Commit(*std::move(lease), last);
    ASSERT_TRUE(committed.ok()) << committed.status().ToString();
    EXPECT_EQ(table->stats().memory_bytes / kBlock, turn) << "of 1 + ... + turn in whole copies";
  }
}

// A session that owns its state may grow: what it has is not asked for again.
TEST(SessionBlocksTest, ReservesWhatIsNew) {
  BlockStates states(kBlock);
  const auto table = NewTable(12 * kBlock);
  const SessionUser user = {"", {"client"}};
  const std::string id = table->Create(user, false, 0s)->id;
  std::shared_ptr<const SavedState> last;
  for (const size_t blocks : {9u, 10u, 11u}) {
    auto lease = table->Acquire(user, id, std::nullopt);
    ASSERT_TRUE(lease.ok());
    const Status reserved = table->Reserve(&*lease, static_cast<int64_t>(blocks));
    ASSERT_TRUE(reserved.ok()) << reserved.ToString();
    last = states.Make(10, last.get(), last == nullptr ? 0 : last->blocks().size(), blocks, 100);
    ASSERT_TRUE(table->Commit(*std::move(lease), Of(last)).ok());
    EXPECT_EQ(table->stats().memory_bytes / kBlock, blocks);
  }
  auto lease = table->Acquire(user, id, std::nullopt);
  ASSERT_TRUE(lease.ok());
  EXPECT_FALSE(table->Reserve(&*lease, 13).ok());
}

// What is counted is what is held, by one client or several, and the limit holds.
TEST(SessionBlocksTest, CountsWhatIsHeld) {
  int64_t refused = 0;
  for (int seed = 0; seed < testing::Count(20, 500); ++seed) {
    Random random(static_cast<uint64_t>(seed));
    BlockStates states(kBlock);
    const size_t memory = static_cast<size_t>(random.Int(10, 60)) * kBlock;
    const auto table = NewTable(memory);
    const SessionUser users[] = {{"", {"a"}}, {"", {"b"}}};
    std::vector<std::string> ids;
    for (int step = 0; step < 100; ++step) {
      const SessionUser& user = users[random.Int(0, 1)];
      const double what = random.Uniform();
      if (ids.empty() || what < 0.2) {
        ids.push_back(table->Create(user, false, 0s)->id);
      } else {
        const auto at = ids.begin() + random.Int(0, std::ssize(ids) - 1);
        if (what < 0.35) {
          const auto fork = table->Fork(user, *at, 1, {});
          if (fork.ok()) ids.push_back(fork->front().id);
        } else if (what < 0.45) {
          ASSERT_TRUE(table->Delete("", *at).ok());
          ids.erase(at);
        } else {
          auto lease = table->Acquire(user, *at, std::nullopt);
          ASSERT_TRUE(lease.ok());
          const SavedState* before =
              lease->snapshot() == nullptr ? nullptr : lease->snapshot()->state.get();
          const size_t has = before == nullptr ? 0 : before->blocks().size();
          const auto shared = static_cast<size_t>(random.Int(0, static_cast<int64_t>(has)));
          const auto blocks = shared + static_cast<size_t>(random.Int(1, 4));
          auto snapshot = Of(states.Make(10, before, shared, blocks, 100));
          const bool reserves = random.Uniform() < 0.5;
          if (reserves && !table->Reserve(&*lease, static_cast<int64_t>(blocks)).ok()) {
            ++refused;
            continue;
          }
          const bool committed = table->Commit(*std::move(lease), std::move(snapshot)).ok();
          ASSERT_TRUE(committed || !reserves) << "what was reserved is not refused";
          refused += !committed;
        }
      }
      const size_t bytes = table->stats().memory_bytes, held = states.Held();
      ASSERT_LE(bytes, memory);
      ASSERT_GE(bytes, held) << "seed " << seed << ", step " << step;
      ASSERT_LT(bytes, held + kSnapshots) << "seed " << seed << ", step " << step;
    }
    for (const std::string& id : ids) ASSERT_TRUE(table->Delete("", id).ok());
    EXPECT_EQ(table->stats().memory_bytes, 0u);
    EXPECT_EQ(states.Held(), 0u);
  }
  EXPECT_GT(refused, 10);
}

}  // namespace
}  // namespace polysketch
