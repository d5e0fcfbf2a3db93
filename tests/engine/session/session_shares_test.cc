// Session memory among hosts that have no tenant: they share one tenant's sessions, and each is a
// client of its own.
#include <memory>
#include <string>
#include <vector>

#include "engine/session/session_table.h"
#include "engine/store/open_state_store.h"
#include "gtest/gtest.h"
#include "tests/engine/session/small_snapshot.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

using namespace std::chrono_literals;

using testing::At;
using testing::kStateBytes;
using testing::kVocab;

class SessionSharesTest : public ::testing::Test {
 protected:
  // With room for a number of states.
  void Start(size_t states) {
    SessionOptions options;
    options.codec.binding.numerics = "test";
    options.codec.limits = {{kVocab, 1000, true}, 1 << 20};
    options.store = store_.get();
    options.memory = states * At(10)->bytes();
    table_ = std::make_unique<SessionTable>(std::move(options));
  }
  Status Put(const std::string& id, int64_t tokens, const SessionUser& user) {
    PS_ASSIGN_OR_RETURN(SessionLease lease, table_->Acquire(user, id, std::nullopt));
    return table_->Commit(std::move(lease), At(tokens)).status();
  }
  // Makes sessions of the user until one is refused. Returns those that were made.
  std::vector<std::string> Fill(const SessionUser& user) {
    std::vector<std::string> ids;
    while (ids.size() < 100) {
      const std::string id = table_->Create(user, false, 0s)->id;
      if (!Put(id, 10, user).ok()) break;
      ids.push_back(id);
    }
    return ids;
  }

  testing::TemporaryFolder folder_;
  std::unique_ptr<StateStore> store_;
  std::unique_ptr<SessionTable> table_;
};

TEST_F(SessionSharesTest, AHostWithoutATenantLeavesRoomForOthers) {
  Start(21);
  EXPECT_EQ(Fill({"", {"10.0.0.1"}}).size(), 15u);
  EXPECT_EQ(Fill({"", {"10.0.0.2"}}).size(), 4u);
  EXPECT_EQ(Fill({"10.0.0.1", {"10.0.0.3"}}).size(), 1u) << "a tenant, whatever its name and host";
}

// The hosts share one tenant, so that each may write the other's sessions.
TEST_F(SessionSharesTest, ASessionCountsForTheHostThatWroteItLast) {
  const SessionUser first = {"", {"10.0.0.1"}}, second = {"", {"10.0.0.2"}};
  Start(21);
  const std::vector<std::string> ids = Fill(first);
  ASSERT_EQ(ids.size(), 15u);
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(Put(ids[i], 20, second).ok()) << i;
  EXPECT_EQ(Fill(first).size(), 2u) << "with 7, at most 3 times the 4 that are free then";
  // What a host writes must fit its share, even if it takes no more memory.
  size_t written = 8;
  while (written < ids.size() && Put(ids[written], 30, second).ok()) ++written;
  EXPECT_EQ(written, 12u) << "12 are 3 times the 4 that are free";
  EXPECT_TRUE(Put(ids[written], 30, first).ok());
  EXPECT_LE(table_->stats().memory_bytes, table_->stats().memory_limit);
}

TEST_F(SessionSharesTest, AStateThatHostsShareTakesMemoryOnce) {
  const SessionUser first = {"", {"10.0.0.1"}}, second = {"", {"10.0.0.2"}};
  Start(10);
  const std::string id = table_->Create(first, false, 0s)->id;
  ASSERT_TRUE(Put(id, 10, first).ok());
  const size_t before = table_->stats().memory_bytes;
  const auto forks = table_->Fork(second, id, 2, {});
  ASSERT_TRUE(forks.ok()) << forks.status().ToString();
  EXPECT_LT(table_->stats().memory_bytes, before + kStateBytes);
  ASSERT_TRUE(table_->Delete("", id).ok());
  EXPECT_GT(table_->stats().memory_bytes, kStateBytes) << "the forks have it";
  for (const SessionInfo& fork : *forks) ASSERT_TRUE(table_->Delete("", fork.id).ok());
  EXPECT_EQ(table_->stats().memory_bytes, 0u);
}

TEST_F(SessionSharesTest, NobodyFillsTheNumberOfSessionsOfTheTenantWithoutAName) {
  Start(21);
  int made = 0;
  while (table_->Create({"", {"10.0.0.1"}}, false, 0s).ok()) ++made;
  EXPECT_EQ(made, table_->options().max_per_tenant);
  EXPECT_TRUE(table_->Create({"", {"10.0.0.2"}}, false, 0s).ok());
  EXPECT_FALSE(table_->Create({"", {"10.0.0.1", "part"}}, false, 0s).ok());
}

TEST_F(SessionSharesTest, AHostAboveItsShareMovesItsOwnSessions) {
  const SessionUser few = {"", {"10.0.0.1"}}, many = {"", {"10.0.0.2"}};
  store_ = *OpenStateStore("dir:" + folder_.path().string());
  Start(4);
  const std::string small = table_->Create(few, false, 0s)->id;
  ASSERT_TRUE(Put(small, 10, few).ok());
  std::vector<std::string> ids;
  for (int i = 0; i < 20; ++i) {
    ids.push_back(table_->Create(many, false, 0s)->id);
    ASSERT_TRUE(Put(ids.back(), 10, many).ok());
  }
  const auto in_memory = [this](const std::string& id) {
    const SessionTable::Listing listing = table_->List("").value();
    for (const SessionInfo& info : listing.sessions)
      if (info.id == id) return info.in_memory;
    return false;
  };
  EXPECT_TRUE(in_memory(small));
  EXPECT_EQ(table_->stats().spills, 17);
  // Read from the store, a session counts for the host that has it read.
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(table_->Acquire(few, ids[static_cast<size_t>(i)], {}).ok());
  EXPECT_FALSE(in_memory(small))
      << "its host has more than the other, and this is its least recently used";
  EXPECT_TRUE(in_memory(ids.back()));
}

}  // namespace
}  // namespace polysketch
