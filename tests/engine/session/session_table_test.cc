// Stored sessions: tiers, stores, tenants, leases, other replicas and the end of the process.
#include "engine/session/session_table.h"
#include "engine/store/open_state_store.h"

#include <cstring>
#include <set>
#include <string>
#include <thread>

#include "base/logging.h"
#include "engine/session/session_keys.h"
#include "engine/store/state_key.h"
#include "gtest/gtest.h"
#include "tests/engine/simulation/simulated_store.h"
#include "tests/testing/random.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

using namespace std::chrono_literals;

constexpr int kNoisyVocab = 100;
constexpr size_t kNoisyBytes = 4000;

std::shared_ptr<const Snapshot> NoisyAt(int64_t tokens) {
  testing::Random random(static_cast<uint64_t>(tokens));
  auto snapshot = std::make_shared<Snapshot>();
  auto state = std::make_shared<SavedState>();
  state->position = tokens - 1;
  const std::vector<float> values = random.Normals(kNoisyBytes / 4);
  state->bytes.resize(kNoisyBytes);
  std::memcpy(state->bytes.data(), values.data(), kNoisyBytes);
  snapshot->state = state;
  snapshot->pending = {5};
  snapshot->history.tail = {5};
  snapshot->history.seen = TokenSet(kNoisyVocab);
  snapshot->history.seen.Insert(5);
  return snapshot;
}

class SessionTableTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) store_ = *OpenStateStore("dir:" + folder_.path().string());
    table_ = NewTable();
  }
  std::unique_ptr<SessionTable> NewTable(size_t memory = 1 << 20, int most = 10) {
    SessionOptions options;
    options.codec.binding.numerics = numerics_;
    options.codec.limits = {{kNoisyVocab, 1000, true}, 1 << 20};
    options.store = store_.get();
    options.memory = memory;
    options.max_per_tenant = most;
    options.default_ttl = 1h;
    options.state_bytes = [](int64_t) { return kNoisyBytes; };
    options.now = [this] { return started_ + elapsed_; };
    options.date = [this] { return date_ + elapsed_; };
    return std::make_unique<SessionTable>(std::move(options));
  }
  static std::string Create(SessionTable* table, bool durable = false) {
    const auto info = table->Create({"t", {"t"}}, durable, 0s);
    EXPECT_TRUE(info.ok()) << info.status().ToString();
    return info->id;
  }
  static Status Put(SessionTable* table, const std::string& id, int64_t tokens,
                    const SessionUser& user = {"t", {"t"}}) {
    PS_ASSIGN_OR_RETURN(SessionLease lease, table->Acquire(user, id, std::nullopt));
    return table->Commit(std::move(lease), NoisyAt(tokens)).status();
  }
  static void ExpectAt(SessionTable* table, const std::string& id, int64_t tokens) {
    const auto lease = table->Acquire({"t"}, id, std::nullopt);
    ASSERT_TRUE(lease.ok()) << lease.status().ToString();
    EXPECT_EQ(lease->tokens(), tokens);
    if (tokens == 0) return;
    EXPECT_EQ(lease->snapshot()->state->bytes, NoisyAt(tokens)->state->bytes);
  }

  testing::TemporaryFolder folder_;
  std::string numerics_ = "test";
  std::unique_ptr<StateStore> store_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::chrono::system_clock::time_point date_ = std::chrono::system_clock::now();
  std::chrono::milliseconds elapsed_{0};
  std::unique_ptr<SessionTable> table_;
};
INSTANTIATE_TEST_SUITE_P(Store, SessionTableTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "dir" : "none"; });

TEST_P(SessionTableTest, OneRequestAtATime) {
  const std::string id = Create(table_.get());
  {
    auto lease = table_->Acquire({"t"}, id, 0);
    ASSERT_TRUE(lease.ok());
    EXPECT_EQ(lease->snapshot(), nullptr);
    EXPECT_EQ(table_->Acquire({"t"}, id, 0).status().code(), Code::kAborted);
    EXPECT_EQ(table_->Fork({"t"}, id, 1, {}).status().code(), Code::kAborted);
    EXPECT_EQ(table_->TakeSnapshot({"t"}, id, 0s).status().code(), Code::kAborted);
    EXPECT_EQ(table_->Delete("t", id).code(), Code::kAborted);
    ASSERT_TRUE(table_->Commit(*std::move(lease), NoisyAt(7)).ok());
  }
  { const auto unchanged = table_->Acquire({"t"}, id, 7); }  // let go of without a commit
  ExpectAt(table_.get(), id, 7);
  EXPECT_EQ(table_->Acquire({"t"}, id, 6).status().code(), Code::kFailedPrecondition);
}

TEST_P(SessionTableTest, TenantsDoNotSeeEachOther) {
  const std::string id = Create(table_.get());
  ASSERT_TRUE(Put(table_.get(), id, 7).ok());
  const auto snapshot = table_->TakeSnapshot({"t"}, id, 0s);
  ASSERT_TRUE(snapshot.ok());
  for (const std::string other : {"", "u"}) {
    EXPECT_EQ(table_->Acquire({other}, id, {}).status().code(), Code::kNotFound);
    EXPECT_EQ(table_->Fork({other}, id, 1, {}).status().code(), Code::kNotFound);
    EXPECT_EQ(table_->TakeSnapshot({other}, id, 0s).status().code(), Code::kNotFound);
    EXPECT_EQ(table_->Restore({other}, snapshot->key, false, 0s).status().code(), Code::kNotFound);
    EXPECT_EQ(table_->Delete(other, id).code(), Code::kNotFound);
    EXPECT_EQ(table_->Delete(other, snapshot->key).code(), Code::kNotFound);
    EXPECT_TRUE(table_->List(other)->sessions.empty());
    EXPECT_TRUE(table_->List(other)->snapshots.empty());
  }
  EXPECT_EQ(table_->List("t")->sessions.size(), 1u);
  EXPECT_EQ(table_->List("t")->snapshots.size(), 1u);
}

TEST_P(SessionTableTest, ForksAndSnapshots) {
  const std::string id = Create(table_.get());
  ASSERT_TRUE(Put(table_.get(), id, 7).ok());
  const size_t one = table_->stats().memory_bytes;
  const auto forks = table_->Fork({"t"}, id, 3, 7);
  ASSERT_TRUE(forks.ok()) << forks.status().ToString();
  ASSERT_EQ(forks->size(), 3u);
  EXPECT_LT(table_->stats().memory_bytes, one + 3 * (sizeof(Snapshot) + 100))
      << "forks share their state";
  ASSERT_TRUE(Put(table_.get(), (*forks)[0].id, 9).ok());
  ExpectAt(table_.get(), (*forks)[0].id, 9);
  ExpectAt(table_.get(), (*forks)[1].id, 7);
  ExpectAt(table_.get(), id, 7);

  const auto snapshot = table_->TakeSnapshot({"t"}, id, 0s);
  ASSERT_TRUE(snapshot.ok());
  ASSERT_TRUE(Put(table_.get(), id, 20).ok());
  const auto restored = table_->Restore({"t"}, snapshot->key, false, 0s);
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ(restored->tokens, 7);
  ExpectAt(table_.get(), restored->id, 7);
  ExpectAt(table_.get(), id, 20);
  EXPECT_TRUE(table_->Delete("t", snapshot->key).ok());
  EXPECT_EQ(table_->Restore({"t"}, snapshot->key, false, 0s).status().code(), Code::kNotFound);
  EXPECT_EQ(table_->Restore({"t"}, "../../x", false, 0s).status().code(), Code::kNotFound);
  EXPECT_TRUE(table_->Delete("t", id).ok());
  EXPECT_EQ(table_->Acquire({"t"}, id, {}).status().code(), Code::kNotFound);
}

TEST_P(SessionTableTest, LimitsAndTimes) {
  table_ = NewTable(1 << 20, 2);
  const std::string a = Create(table_.get());
  const std::string b = Create(table_.get());
  EXPECT_EQ(table_->Create({"t"}, false, 0s).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(table_->Fork({"t"}, a, 1, {}).status().code(), Code::kResourceExhausted);
  EXPECT_TRUE(table_->Create({"u"}, false, 0s).ok()) << "another tenant's";
  EXPECT_EQ(table_->Create({"u"}, false, -1s).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(table_->Create({"u"}, false, 24h * 400).status().code(), Code::kInvalidArgument);
  elapsed_ += 30min;
  { const auto used = table_->Acquire({"t"}, a, {}); }
  elapsed_ += 40min;  // b has not been used for 70 minutes
  EXPECT_TRUE(table_->Acquire({"t"}, a, {}).ok());
  EXPECT_EQ(table_->Acquire({"t"}, b, {}).status().code(), Code::kNotFound);
  EXPECT_TRUE(table_->Create({"t"}, false, 0s).ok());
  EXPECT_EQ(table_->Create({"t"}, !GetParam(), 0s).status().code(),
            GetParam() ? Code::kResourceExhausted : Code::kFailedPrecondition);
}

TEST_P(SessionTableTest, AJumpOfTheSystemClockEndsNoSession) {
  const std::string id = Create(table_.get());
  ASSERT_TRUE(Put(table_.get(), id, 7).ok());
  elapsed_ += 2s;
  for (const auto jump : {24h, -48h}) {
    date_ += jump;
    ExpectAt(table_.get(), id, 7);
  }
  const auto listing = table_->List("t");
  ASSERT_EQ(listing->sessions.size(), 1u);
  EXPECT_EQ(listing->sessions[0].age, 0s) << "created in the future, as the clock now says";
}

TEST_P(SessionTableTest, SnapshotsExpire) {
  const std::string id = Create(table_.get());
  ASSERT_TRUE(Put(table_.get(), id, 7).ok());
  const auto kept = table_->TakeSnapshot({"t"}, id, 1h);
  const auto other = table_->TakeSnapshot({"t"}, id, 1h);
  const auto passing = table_->TakeSnapshot({"t"}, id, 50ms);
  ASSERT_TRUE(kept.ok() && other.ok() && passing.ok());
  elapsed_ += 2s;                     // of the table
  std::this_thread::sleep_for(80ms);  // of a store
  EXPECT_EQ(table_->Restore({"t"}, passing->key, false, 0s).status().code(), Code::kNotFound);
  const auto listing = table_->List("t");
  std::set<std::string> keys;
  for (const auto& snapshot : listing->snapshots) keys.insert(snapshot.key);
  EXPECT_EQ(keys, (std::set<std::string>{kept->key, other->key}));
  EXPECT_TRUE(table_->Restore({"t"}, kept->key, false, 0s).ok());
}

TEST_P(SessionTableTest, MemoryIsBounded) {
  constexpr size_t kMemory = 4 * kNoisyBytes;
  constexpr int kFit = 2;  // states without a store: a client alone may hold three quarters
  table_ = NewTable(kMemory, 100);
  std::vector<std::string> ids;
  for (int i = 0; i < 8; ++i) {
    ids.push_back(Create(table_.get()));
    const Status status = Put(table_.get(), ids.back(), i + 10);
    if (GetParam() || i < kFit) {
      ASSERT_TRUE(status.ok()) << i << status.ToString();
    } else {
      EXPECT_EQ(status.code(), Code::kResourceExhausted);
    }
    EXPECT_LE(table_->stats().memory_bytes, kMemory);
  }
  for (int i = 7; i >= 0; --i) {
    ExpectAt(table_.get(), ids[static_cast<size_t>(i)], GetParam() || i < kFit ? i + 10 : 0);
  }
  EXPECT_EQ(table_->stats().spills > 0, GetParam());
  EXPECT_EQ(table_->stats().loads > 0, GetParam());
}

class SessionsInMemoryTest : public SessionTableTest {
 protected:
  // Makes sessions of the user until one is refused. Returns those that were made.
  std::vector<std::string> Fill(const SessionUser& user) {
    std::vector<std::string> ids;
    while (ids.size() < 100) {
      const std::string id = table_->Create(user, false, 0s)->id;
      if (!Put(table_.get(), id, 10, user).ok()) break;
      ids.push_back(id);
    }
    return ids;
  }
};
INSTANTIATE_TEST_SUITE_P(Store, SessionsInMemoryTest, ::testing::Values(false));

TEST_P(SessionsInMemoryTest, ATenantLeavesRoomForOthers) {
  table_ = NewTable(21 * NoisyAt(10)->bytes(), 1000);
  const std::vector<std::string> first = Fill({"t", {"t"}});
  EXPECT_EQ(first.size(), 15u) << "at most 3 times the 6 that are free, not 3 times 5";
  EXPECT_EQ(Fill({"u", {"u"}}).size(), 4u) << "at most 3 times the 2 that are free";
  EXPECT_EQ(Fill({"v", {"v"}}).size(), 1u) << "the first needs to fit only";
  EXPECT_EQ(Fill({"w", {"w"}}).size(), 1u);
  EXPECT_EQ(Fill({"x", {"x"}}).size(), 0u);
  EXPECT_LE(table_->stats().memory_bytes, table_->stats().memory_limit);
  // No session was lost for that, and each continues.
  for (const std::string& id : first) {
    ExpectAt(table_.get(), id, 10);
    EXPECT_TRUE(Put(table_.get(), id, 20).ok());
  }
}

TEST_P(SessionsInMemoryTest, ForksCountWhenTheyPart) {
  table_ = NewTable(7 * NoisyAt(10)->bytes() / 2, 1000);
  const std::string id = Create(table_.get());
  ASSERT_TRUE(Put(table_.get(), id, 10).ok());
  const auto forks = table_->Fork({"t", {"t"}}, id, 3, {});
  ASSERT_TRUE(forks.ok()) << forks.status().ToString();
  EXPECT_TRUE(Put(table_.get(), forks->at(0).id, 11).ok());
  const Status refused = Put(table_.get(), forks->at(1).id, 12);
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_NE(refused.message().find("a client may hold 3 times what is free"), std::string::npos);
  ExpectAt(table_.get(), forks->at(1).id, 10);
  EXPECT_TRUE(Put(table_.get(), forks->at(0).id, 13).ok());
  ASSERT_TRUE(table_->Delete("t", forks->at(0).id).ok());
  EXPECT_TRUE(Put(table_.get(), forks->at(1).id, 12).ok());
}

// Makes a session of the user, and gives it a state.
std::string MakeWithState(SessionTable* table, const SessionUser& user, SessionTable::Keep keep,
                          Status* status) {
  const auto made = table->Create(user, keep, 0s);
  *status = made.status();
  if (!made.ok()) return "";
  auto lease = table->Acquire(user, made->id, {});
  *status = table->Reserve(&*lease, 10);
  if (status->ok()) *status = table->Commit(*std::move(lease), NoisyAt(10)).status();
  return made->id;
}

TEST_P(SessionsInMemoryTest, EvictableSessionsGiveWayLeastRecentlyUsedFirst) {
  table_ = NewTable(21 * NoisyAt(10)->bytes(), 1000);
  const SessionUser user = {"t", {"t"}}, other = {"u", {"u"}};
  using Keep = SessionTable::Keep;
  std::vector<std::string> ids;
  Status status;
  for (int i = 0; i < 100; ++i) {
    ids.push_back(MakeWithState(table_.get(), user, Keep::kEvictable, &status));
    ASSERT_TRUE(status.ok()) << i << ": " << status.ToString();
    if (i >= 5) ExpectAt(table_.get(), ids[5], 10);  // is used again and again
  }
  EXPECT_EQ(table_->stats().evicted, 100 - 15);
  EXPECT_EQ(table_->Acquire(user, ids[6], {}).status().code(), Code::kNotFound);
  for (size_t i = 86; i < 100; ++i) ExpectAt(table_.get(), ids[i], 10);
  ExpectAt(table_.get(), ids[5], 10);
  // Another one gets an equal share of them, and evicts no more.
  for (int i = 0; i < 100; ++i) {
    MakeWithState(table_.get(), other, Keep::kEvictable, &status);
    ASSERT_TRUE(status.ok()) << i << ": " << status.ToString();
  }
  const size_t left = table_->List("t")->sessions.size();
  EXPECT_GE(left, 9u);
  EXPECT_GE(table_->List("u")->sessions.size(), 9u);
  // A session that is a promise evicts evictable ones, and is not evicted.
  std::vector<std::string> kept;
  while (kept.size() < 100) {
    const std::string id = MakeWithState(table_.get(), user, Keep::kPassing, &status);
    if (!status.ok()) break;
    kept.push_back(id);
  }
  EXPECT_GE(kept.size(), 9u);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  for (const std::string& id : kept) ExpectAt(table_.get(), id, 10);
}

// The base of a fork shares with it all that it has: without it, its fork would fit no better.
TEST_P(SessionsInMemoryTest, WhatIsRefusedEvictsNone) {
  table_ = NewTable(8 * NoisyAt(10)->bytes(), 1000);
  const SessionUser user = {"t", {"t"}};
  using Keep = SessionTable::Keep;
  Status status;
  const std::string base = MakeWithState(table_.get(), user, Keep::kEvictable, &status);
  for (int i = 0; i < 5; ++i) {
    MakeWithState(table_.get(), user, Keep::kPassing, &status);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  const auto forks = table_->Fork(user, base, 1, 10);
  ASSERT_TRUE(forks.ok()) << forks.status().ToString();
  {
    auto lease = table_->Acquire(user, forks->at(0).id, {});
    EXPECT_EQ(table_->Reserve(&*lease, 10).code(), Code::kResourceExhausted);
  }
  EXPECT_EQ(table_->stats().evicted, 0);
  ExpectAt(table_.get(), base, 10);
}

TEST_P(SessionsInMemoryTest, RoomIsFoundBeforeTheWorkAndTheTimeToWaitIsTrue) {
  table_ = NewTable(8 * NoisyAt(10)->bytes(), 1000);
  const SessionUser user = {"t", {"t"}};
  using Keep = SessionTable::Keep;
  Status status;
  for (int i = 0; i < 6; ++i) {
    MakeWithState(table_.get(), user, Keep::kPassing, &status);
    ASSERT_TRUE(status.ok()) << status.ToString();
    elapsed_ += 1min;
  }
  const std::string id = table_->Create(user, Keep::kPassing, 0s)->id;
  {
    auto lease = table_->Acquire(user, id, {});
    const Status refused = table_->Reserve(&*lease, 10);
    EXPECT_EQ(refused.code(), Code::kResourceExhausted);
    ASSERT_TRUE(refused.retry_after().has_value());
    // The first session, six minutes old, expires after an hour.
    EXPECT_GE(*refused.retry_after(), 54min);
    EXPECT_LE(*refused.retry_after(), 54min + 2s);
    elapsed_ += *refused.retry_after();
    EXPECT_TRUE(table_->Reserve(&*lease, 10).ok());
    // What is reserved is not there for others, until the lease ends.
    MakeWithState(table_.get(), user, Keep::kEvictable, &status);
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    const std::string message(status.message());
    ASSERT_TRUE(message.starts_with("sessions take ")) << message;
    EXPECT_GT(std::stoull(message.substr(14)), table_->stats().memory_bytes);
  }
  MakeWithState(table_.get(), user, Keep::kEvictable, &status);
  EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST_P(SessionTableTest, EvictableSessionsDoNotFillTheLimitOfATenant) {
  table_ = NewTable(1 << 20, 10);
  const SessionUser user = {"t", {"t"}};
  Status status;
  std::string first, last;
  for (int i = 0; i < 40; ++i) {
    last = MakeWithState(table_.get(), user, SessionTable::Keep::kEvictable, &status);
    ASSERT_TRUE(status.ok()) << i << ": " << status.ToString();
    if (first.empty()) first = last;
  }
  EXPECT_EQ(table_->List("t")->sessions.size(), 10u);
  EXPECT_EQ(table_->Acquire(user, first, {}).status().code(), Code::kNotFound);
  ExpectAt(table_.get(), last, 10);
  const auto forks = table_->Fork(user, last, 5, {});
  ASSERT_TRUE(forks.ok()) << forks.status().ToString();
  EXPECT_TRUE(table_->Create(user, false, 0s).ok()) << "and forks are evictable";
}

class StoredSessionTest : public SessionTableTest {};
INSTANTIATE_TEST_SUITE_P(Store, StoredSessionTest, ::testing::Values(true));

TEST_P(StoredSessionTest, ATenantAboveItsShareMovesItsOwnSessions) {
  table_ = NewTable(4 * NoisyAt(10)->bytes(), 1000);
  const std::string small = table_->Create({"u", {"u"}}, false, 0s)->id;
  ASSERT_TRUE(Put(table_.get(), small, 10, {"u", {"u"}}).ok());
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Put(table_.get(), Create(table_.get()), 10).ok());
  EXPECT_TRUE(table_->List("u")->sessions.at(0).in_memory);
  EXPECT_EQ(table_->stats().spills, 17);
}

// A server that has started again knows nothing of the sessions that its store holds.
TEST_P(StoredSessionTest, StoredEvictableSessionsDoNotFillTheLimitAfterARestart) {
  const SessionUser user = {"t", {"t"}};
  Status status;
  std::vector<std::string> ids;
  for (int i = 0; i < 8; ++i)
    ids.push_back(MakeWithState(table_.get(), user, SessionTable::Keep::kEvictable, &status));
  const std::string durable = Create(table_.get(), true), other = Create(table_.get(), true);
  table_->Flush();
  const auto after = NewTable();
  elapsed_ += 1min;
  ASSERT_TRUE(Put(after.get(), ids[0], 10, user).ok());  // is used last
  for (int i = 0; i < 3; ++i) {
    MakeWithState(after.get(), user, SessionTable::Keep::kEvictable, &status);
    ASSERT_TRUE(status.ok()) << i << ": " << status.ToString();
  }
  ExpectAt(after.get(), durable, 0);
  ExpectAt(after.get(), other, 0);
  // The store is asked when ten are in memory.
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(after->Create(user, false, 0s).ok()) << i;
  EXPECT_EQ(after->List("t")->sessions.size(), 10u);
  ExpectAt(after.get(), durable, 0);
  EXPECT_EQ(after->Acquire(user, ids[1], {}).status().code(), Code::kNotFound);
  for (int i = 5; i < 20; ++i) {
    EXPECT_EQ(after->Create(user, false, 0s).ok(), i < 8) << i << ": two are durable";
  }
}

// A table that is never told of its end stands for kill -9.
TEST_P(StoredSessionTest, DurableSessionsSurvive) {
  const std::string durable = Create(table_.get(), true);
  const std::string passing = Create(table_.get(), false);
  ASSERT_TRUE(Put(table_.get(), durable, 7).ok());
  ASSERT_TRUE(Put(table_.get(), durable, 8).ok());
  ASSERT_TRUE(Put(table_.get(), passing, 8).ok());
  const auto after = NewTable();
  ExpectAt(after.get(), durable, 8);
  EXPECT_EQ(after->Acquire({"t"}, passing, {}).status().code(), Code::kNotFound);
  ASSERT_EQ(after->List("t")->sessions.size(), 1u);
  EXPECT_TRUE(after->List("t")->sessions[0].durable);
}

TEST_P(StoredSessionTest, ReplicasFollowEachOther) {
  const auto other = NewTable();
  const std::string id = Create(table_.get(), true);
  ASSERT_TRUE(Put(table_.get(), id, 7).ok());
  ExpectAt(other.get(), id, 7);
  ASSERT_TRUE(Put(other.get(), id, 9).ok());
  ExpectAt(table_.get(), id, 9);
  ASSERT_TRUE(Put(table_.get(), id, 11).ok());
  ASSERT_TRUE(other->Delete("t", id).ok());
  EXPECT_EQ(table_->Acquire({"t"}, id, {}).status().code(), Code::kNotFound);
}

// Of sessions that it never held a replica lists what their own one would.
TEST_P(StoredSessionTest, ListingsAgree) {
  const std::string id = Create(table_.get(), true);
  const std::string spilled = Create(table_.get(), false);
  ASSERT_TRUE(Put(table_.get(), id, 7).ok());
  ASSERT_TRUE(Put(table_.get(), spilled, 12).ok());
  table_->Flush();
  elapsed_ += 10min;
  const auto other = NewTable();
  const auto find = [](SessionTable* table, const std::string& which) {
    const auto listing = table->List("t");
    for (const SessionInfo& info : listing->sessions) {
      if (info.id == which) return info;
    }
    ADD_FAILURE() << "not listed";
    return SessionInfo();
  };
  for (const auto& [which, tokens] : {std::pair(id, 7), std::pair(spilled, 12)}) {
    const SessionInfo own = find(table_.get(), which);
    const SessionInfo told = find(other.get(), which);
    EXPECT_EQ(told.tokens, tokens);
    EXPECT_EQ(told.durable, which == id);
    EXPECT_EQ(told.ttl, own.ttl);
    EXPECT_NEAR(static_cast<double>(told.age.count()), static_cast<double>(own.age.count()), 2);
    EXPECT_GE(told.age, 10min);
    EXPECT_FALSE(told.in_memory);
  }
  ASSERT_TRUE(Put(other.get(), id, 9).ok());  // which this table has at 7
  EXPECT_EQ(find(table_.get(), id).tokens, 9);
  ASSERT_TRUE(other->Delete("t", id).ok());
  EXPECT_EQ(table_->List("t")->sessions.size(), 1u);
  // Nor do they count any more.
  const auto two = NewTable(1 << 20, 2);
  EXPECT_EQ(Create(two.get(), true).size(), 32u);
  EXPECT_EQ(two->Create({"t"}, true, 0s).status().code(), Code::kResourceExhausted);
  ASSERT_TRUE(other->Delete("t", spilled).ok());
  EXPECT_TRUE(two->Create({"t"}, true, 0s).ok());

  ASSERT_TRUE(store_->Put("t", SessionKey(NewStateKey()), "damaged", 1h).ok());
  const std::vector<SessionInfo> all = two->List("t")->sessions;
  EXPECT_EQ(all.size(), 3u);
  EXPECT_TRUE(two->Delete("t", all.back().id).ok()) << "it can be deleted";
}

TEST_P(StoredSessionTest, FlushHandsEverythingOver) {
  const std::string id = Create(table_.get(), false);
  const std::string empty = Create(table_.get(), false);
  ASSERT_TRUE(Put(table_.get(), id, 7).ok());
  table_->Flush();
  const auto other = NewTable();
  ExpectAt(other.get(), id, 7);
  ExpectAt(other.get(), empty, 0);
}

// A spilled session that went on must not come back from its older state.
TEST_P(StoredSessionTest, NoOlderStateComesBack) {
  table_ = NewTable(kNoisyBytes + 1000, 100);
  const std::string a = Create(table_.get());
  const std::string b = Create(table_.get());
  ASSERT_TRUE(Put(table_.get(), a, 7).ok());
  ASSERT_TRUE(Put(table_.get(), b, 7).ok());  // a is spilled
  ASSERT_TRUE(Put(table_.get(), a, 9).ok());  // and goes on
  const auto after = NewTable();
  EXPECT_EQ(after->Acquire({"t"}, a, {}).status().code(), Code::kNotFound);
}

TEST_P(StoredSessionTest, SpilledOnesCount) {
  table_ = NewTable(kNoisyBytes + 1000, 3);
  const std::string first = Create(table_.get());
  ASSERT_TRUE(Put(table_.get(), first, 7).ok());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Put(table_.get(), Create(table_.get()), 7).ok());
  ASSERT_EQ(table_->stats().spills, 2);
  for (const bool durable : {false, true}) {
    EXPECT_EQ(table_->Create({"t"}, durable, 0s).status().code(), Code::kResourceExhausted);
  }
  ASSERT_TRUE(NewTable()->Delete("t", first).ok());  // by another replica
  EXPECT_TRUE(table_->Create({"t"}, false, 0s).ok());
  EXPECT_EQ(table_->Create({"t"}, false, 0s).status().code(), Code::kResourceExhausted);
}

TEST_P(StoredSessionTest, DamagedOnesAreRefused) {
  SetLogLevel(LogLevel::kError);  // hundreds of warnings
  const std::string id = Create(table_.get(), true);
  ASSERT_TRUE(Put(table_.get(), id, 7).ok());
  const auto entry = store_->Get("t", "session-" + id);
  ASSERT_TRUE(entry.ok());
  for (size_t i = 0; i < entry->bytes.size(); i += i < 200 ? 1 : 97) {
    std::string bad(AsText(entry->bytes));
    bad[i] = static_cast<char>(bad[i] ^ 1);
    ASSERT_TRUE(store_->Put("t", "session-" + id, bad, 1h).ok());
    EXPECT_FALSE(NewTable()->Acquire({"t"}, id, {}).ok()) << "byte " << i;
  }
  SetLogLevel(LogLevel::kInfo);
  ASSERT_TRUE(store_->Put("t", "session-" + id, std::string(AsText(entry->bytes)), 1h).ok());
  ExpectAt(NewTable().get(), id, 7);
}

// The alert counts on it: whatever the store was asked.
TEST_P(StoredSessionTest, FailuresOfTheStoreAreCounted) {
  testing::Random random(1);
  auto owned = std::make_unique<testing::SimulatedStore>(&random);
  testing::SimulatedStore* const store = owned.get();
  store_ = std::move(owned);
  table_ = NewTable();
  const std::string id = Create(table_.get(), true);
  ASSERT_TRUE(Put(table_.get(), id, 7).ok());
  const auto snapshot = table_->TakeSnapshot({"t"}, id, 0s);
  const auto token = table_->PutMigrated("t", *NoisyAt(7), 1h);
  ASSERT_TRUE(snapshot.ok() && token.ok());
  EXPECT_EQ(table_->Restore({"t"}, NewStateKey(), false, 0s).status().code(), Code::kNotFound);
  EXPECT_EQ(table_->stats().store_errors, 0);

  const std::function<Status()> operations[] = {
      [&] { return table_->Create({"t"}, true, 0s).status(); },
      [&] { return table_->Acquire({"t"}, id, {}).status(); },
      [&] { return table_->Acquire({"t"}, NewStateKey(), {}).status(); },
      [&] { return table_->Fork({"t"}, id, 1, {}).status(); },
      [&] { return table_->TakeSnapshot({"t"}, id, 0s).status(); },
      [&] { return table_->Restore({"t"}, snapshot->key, false, 0s).status(); },
      [&] { return table_->List("t").status(); },
      [&] { return table_->Delete("t", id); },
      [&] { return table_->Delete("t", snapshot->key); },
      [&] { return table_->PutMigrated("t", *NoisyAt(7), 1h).status(); },
      [&] { return table_->GetMigrated("t", *token).status(); }};
  for (const auto& operation : operations) {
    const int64_t before = table_->stats().store_errors;
    store->failing = 2;  // always
    EXPECT_EQ(operation().code(), Code::kUnavailable);
    EXPECT_EQ(table_->stats().store_errors, before + 1) << &operation - operations;
    store->failing = 0;
  }

  // What comes back damaged is a failure too; what belongs to another model is not.
  const int64_t before = table_->stats().store_errors;
  const auto entry = store_->Get("t", "snapshot-" + snapshot->key);
  std::string bytes(AsText(entry->bytes));
  bytes.back() ^= 1;
  ASSERT_TRUE(store_->Put("t", "snapshot-" + snapshot->key, bytes, 1h).ok());
  EXPECT_EQ(table_->Restore({"t"}, snapshot->key, false, 0s).status().code(), Code::kDataLoss);
  EXPECT_EQ(table_->stats().store_errors, before + 1);
  numerics_ = "another";
  const auto another = NewTable();
  EXPECT_EQ(another->Acquire({"t"}, id, {}).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(another->stats().store_errors, 0);
}

TEST_P(StoredSessionTest, StoppedCompletions) {
  const auto token = table_->PutMigrated("t", *NoisyAt(7), 1h);
  ASSERT_TRUE(token.ok());
  const auto other = NewTable();
  const auto snapshot = other->GetMigrated("t", *token);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().ToString();
  EXPECT_EQ((*snapshot)->tokens(), 7);
  EXPECT_EQ(other->GetMigrated("u", *token).status().code(), Code::kNotFound);
  EXPECT_EQ(other->GetMigrated("t", NewStateKey()).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace polysketch
