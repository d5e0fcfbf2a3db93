// A Redis that is slow, hangs, drips, breaks its connections or restarts.
#include <chrono>
#include <thread>
#include <vector>

#include "engine/session/session_table.h"
#include "engine/store/open_state_store.h"
#include "engine/store/redis_client.h"
#include "gtest/gtest.h"
#include "tests/engine/session/small_snapshot.h"
#include "tests/testing/random_model.h"
#include "tests/testing/redis_proxy.h"
#include "tests/testing/redis_server.h"
#include "tests/testing/scripted_redis.h"

namespace polysketch {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class RedisFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(testing::RedisServer::Exists()) << "scripts/setup installs redis-server";
    redis_ = Started();
    proxy_ = std::make_unique<testing::RedisProxy>(redis_->port());
    url_ = StrCat("redis://127.0.0.1:", proxy_->port());
    auto store = OpenStateStore(url_);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = *std::move(store);
  }
  std::unique_ptr<testing::RedisServer> Started() {
    auto redis = std::make_unique<testing::RedisServer>(folder_.path());
    for (int i = 0; i < 500 && !redis->Answers(); ++i) std::this_thread::sleep_for(10ms);
    return redis;
  }
  RedisClient NewClient(std::chrono::milliseconds wait) {
    return RedisClient(*ParseRedisUrl(url_), {.wait = wait});
  }

  testing::TemporaryFolder folder_;
  std::unique_ptr<testing::RedisServer> redis_;
  std::unique_ptr<testing::RedisProxy> proxy_;
  std::string url_;
  std::unique_ptr<StateStore> store_;
};

TEST_F(RedisFaults, ASlowOneIsAskedSeldom) {
  constexpr int kSessions = 300;
  SessionOptions options;
  options.store = store_.get();
  options.memory = 1 << 20;
  SessionTable table(std::move(options));
  for (int i = 0; i < kSessions; ++i) ASSERT_TRUE(table.Create({"t"}, true, 0s).ok());
  const auto exchanges = [this](const auto& operation) {
    const int before = proxy_->exchanges;
    operation();
    return proxy_->exchanges - before;
  };
  // A pipeline may arrive in some pieces, and never in one for each of the sessions.
  EXPECT_LE(exchanges([&] { EXPECT_TRUE(table.Create({"t"}, true, 0s).ok()); }), 3);
  EXPECT_LE(exchanges([&] { EXPECT_EQ(table.List("t")->sessions.size(), kSessions + 1); }), 10);
  EXPECT_EQ(exchanges([&] { EXPECT_TRUE(table.Create({"t"}, false, 0s).ok()); }), 0);
}

TEST_F(RedisFaults, OperationsAtOnceHaveConnectionsOfTheirOwn) {
  proxy_->delay_ms = 100;
  const Clock::time_point start = Clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back(
        [&, i] { EXPECT_TRUE(store_->Put("t", StrCat("session-", i), "bytes", 1h).ok()); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(Clock::now() - start, 600ms) << "one after the other they take 800 ms";
  EXPECT_EQ(store_->List("t", "")->size(), 8u);
}

TEST_F(RedisFaults, AHungOneIsLeftInTime) {
  RedisClient client = NewClient(300ms);
  ASSERT_TRUE(client.RunOne({"SET", "a", "1"}).ok());
  for (std::atomic<bool>* fault : {&proxy_->hangs, &proxy_->drips}) {
    ASSERT_TRUE(client.RunOne({"SET", "a", std::string(100, 'x')}).ok());
    *fault = true;
    for (int i = 0; i < 2; ++i) {  // with a connection that was kept, and with a new one
      const Clock::time_point start = Clock::now();
      EXPECT_EQ(client.RunOne({"GET", "a"}).status().code(), Code::kUnavailable);
      EXPECT_GE(Clock::now() - start, 250ms);
      EXPECT_LT(Clock::now() - start, 1500ms);
    }
    *fault = false;
    const auto after = client.RunOne({"GET", "a"});
    EXPECT_TRUE(after.ok()) << after.status().ToString();
  }
}

TEST_F(RedisFaults, ALargeValueMayTakeItsTime) {
  RedisClient client(*ParseRedisUrl(url_), {.wait = 300ms, .bytes_per_second = 1 << 20});
  proxy_->delay_ms = 2;  // of each 64 KiB: 16 MiB take half a second
  const std::string value(16 << 20, 'v');
  const auto set = client.RunOne({"SET", "large", value});
  ASSERT_TRUE(set.ok()) << set.status().ToString();
  const auto got = client.RunOne({"GET", "large"});
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_EQ((*got)->text, value);
}

TEST_F(RedisFaults, ARestartIsNotNoticed) {
  ASSERT_TRUE(store_->Put("t", "session-a", "1", 1h).ok());
  proxy_->BreakConnections();
  EXPECT_TRUE(store_->Get("t", "session-a").ok()) << "sent again on another connection";

  redis_->Stop();
  proxy_->BreakConnections();
  const auto down = store_->Get("t", "session-a");
  EXPECT_EQ(down.status().code(), Code::kUnavailable);
  EXPECT_EQ(down.status().message().find("127.0.0.1"), std::string::npos)
      << "clients read it: " << down.status().message();
  redis_ = Started();  // it kept nothing
  proxy_->set_target(redis_->port());
  EXPECT_EQ(store_->Get("t", "session-a").status().code(), Code::kNotFound);
  EXPECT_TRUE(store_->List("t", "")->empty());
  EXPECT_TRUE(store_->Put("t", "session-a", "2", 1h).ok());
  EXPECT_EQ(store_->List("t", "")->size(), 1u);
}

TEST_F(RedisFaults, NamesOfExpiredEntriesGo) {
  ASSERT_TRUE(store_->Put("t", "session-a", "1", 30ms).ok());
  ASSERT_TRUE(store_->Put("t", "session-b", "1", 1h).ok());
  EXPECT_EQ(*store_->CountAtMost("t", "session-"), 2);
  std::this_thread::sleep_for(60ms);
  EXPECT_EQ(store_->List("t", "session-")->size(), 1u);
  EXPECT_EQ(*store_->CountAtMost("t", "session-"), 1);
}

// As a replica of an earlier version writes them, which keeps no set of names.
TEST_F(RedisFaults, EntriesWithoutANameAreFoundAtTheStart) {
  ASSERT_TRUE(store_->Put("t", "session-a", "1", 1h).ok());
  RedisClient client = NewClient(5s);
  ASSERT_TRUE(client.RunOne({"DEL", "polysketch/t/.keys"}).ok());
  ASSERT_TRUE(client.RunOne({"SADD", "polysketch/u/.keys", "session-gone"}).ok());
  EXPECT_TRUE(store_->List("t", "")->empty());
  const auto again = *OpenStateStore(url_);
  EXPECT_EQ(again->List("t", "")->size(), 1u);
  EXPECT_EQ(*again->CountAtMost("u", ""), 0);
}

// What is late, twice or never asked for is taken for the reply to no command.
TEST_F(RedisFaults, ARepeatedReplyEndsTheConnection) {
  SessionOptions options;
  options.store = store_.get();
  options.memory = 1 << 20;
  SessionTable table(std::move(options));
  const auto made = table.Create({"t"}, /*durable=*/true, 0s);
  ASSERT_TRUE(made.ok());
  ASSERT_TRUE(store_->Put("t", "session-a", "bytes", 1h).ok());
  for (const int late : {0, 1, 3, 10}) {
    proxy_->repeats_after_ms = late;
    for (int i = 0; i < 20; ++i) {
      // An answer, or that of a broken connection.
      const auto expect = [&](const Status& status) {
        if (status.ok()) return;
        EXPECT_NE(status.message().find("redis: the connection"), std::string::npos)
            << status.ToString();
      };
      expect(table.Acquire({"t"}, made->id, std::nullopt).status());
      const auto got = store_->Get("t", "session-a");
      expect(got.status());
      if (got.ok()) {
        EXPECT_EQ(AsText(got->bytes), "bytes");
      }
      const auto gone = store_->Get("t", "session-b");
      if (gone.status().code() != Code::kNotFound) expect(gone.status());
      std::this_thread::sleep_for(std::chrono::milliseconds(i % 4));
    }
    proxy_->repeats_after_ms = -1;
    const auto after = table.Acquire({"t"}, made->id, std::nullopt);
    EXPECT_TRUE(after.ok()) << late << ": " << after.status().ToString();
  }
}

// The command has arrived, its reply is lost: the entry is as it should be, and the caller is told
// that this is unknown.
TEST_F(RedisFaults, AChangeWithoutAReplyIsUnknown) {
  const auto expect_unknown = [](const Status& status) {
    EXPECT_EQ(status.code(), Code::kAborted) << status.ToString();
    EXPECT_EQ(status.reason(), "OUTCOME_UNKNOWN");
    EXPECT_NE(status.message().find("unknown"), std::string::npos) << status.message();
  };
  const auto other = *OpenStateStore(StrCat("redis://127.0.0.1:", redis_->port()));
  ASSERT_TRUE(store_->Put("t", "session-a", "old", 1h).ok());
  proxy_->loses = true;
  expect_unknown(store_->Put("t", "session-a", "new", 1h).status());
  EXPECT_EQ(AsText(other->Get("t", "session-a")->bytes), "new");
  EXPECT_EQ(store_->Get("t", "session-a").status().code(), Code::kUnavailable) << "changes nothing";
  expect_unknown(store_->Delete("t", "session-a"));
  EXPECT_EQ(other->Get("t", "session-a").status().code(), Code::kNotFound);
  proxy_->loses = false;
  ASSERT_TRUE(store_->Put("t", "session-a", "old", 1h).ok());
  // Nothing was sent: certainly not made.
  redis_->Stop();
  proxy_->BreakConnections();
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(OpenStateStore(url_).status().code(), Code::kUnavailable);
}

// The server has the answer of the store, not what it believed before.
TEST_F(RedisFaults, AServerSeesWhatAReplicaSeesAfterALostReply) {
  const auto open = [](StateStore* store) {
    SessionOptions options;
    options.codec.limits = {{testing::kVocab, 1000, true}, 1 << 20};
    options.store = store;
    options.memory = 1 << 20;
    return std::make_unique<SessionTable>(std::move(options));
  };
  const auto other = *OpenStateStore(StrCat("redis://127.0.0.1:", redis_->port()));
  const auto server = open(store_.get()), replica = open(other.get());
  const std::string id = server->Create({"t"}, /*durable=*/true, 0s)->id;
  for (const bool loses : {false, true, false}) {
    auto lease = server->Acquire({"t"}, id, std::nullopt);
    ASSERT_TRUE(lease.ok()) << lease.status().ToString();
    const int64_t tokens = lease->tokens() + 2;
    proxy_->loses = loses;
    EXPECT_EQ(server->Commit(*std::move(lease), testing::At(tokens)).ok(), !loses);
    proxy_->loses = false;
    EXPECT_EQ(server->List("t")->sessions.at(0).tokens, tokens);
    EXPECT_EQ(replica->List("t")->sessions.at(0).tokens, tokens);
    EXPECT_EQ(server->Acquire({"t"}, id, std::nullopt)->tokens(), tokens);
  }
}

TEST_F(RedisFaults, AValueWithoutItsNameIsUnknown) {
  RedisClient client = NewClient(5s);
  ASSERT_TRUE(client.RunOne({"SET", "polysketch/t/.keys", "no set"}).ok());
  const Status status = store_->Put("t", "session-a", "bytes", 1h).status();
  EXPECT_EQ(status.reason(), "OUTCOME_UNKNOWN") << status.ToString();
  EXPECT_TRUE(store_->Get("t", "session-a").ok()) << "it is there";
}

// Clients read no word of Redis: it may name hosts, files and users.
TEST_F(RedisFaults, ErrorsQuoteNothingOfRedis) {
  ASSERT_TRUE(store_->Put("t", "session-a", "bytes", 1h).ok());
  RedisClient client = NewClient(5s);
  const auto expect_own_words = [](const Status& status) {
    EXPECT_FALSE(status.ok());
    for (const char* const word : {"WRONGTYPE", "NOPERM", "NOAUTH", "MOVED", "OOM", "default",
                                   "Operation", "10.0.0.7", "secret", "Protocol"}) {
      EXPECT_EQ(status.message().find(word), std::string::npos) << status.ToString();
    }
  };
  ASSERT_TRUE(client.RunOne({"DEL", "polysketch/t/.keys", "polysketch/t/session-b"}).ok());
  ASSERT_TRUE(client.RunOne({"SADD", "polysketch/t/session-b", "a set"}).ok());
  ASSERT_TRUE(client.RunOne({"SET", "polysketch/t/.keys", "no set"}).ok());
  const auto expect_all = [&] {
    expect_own_words(store_->Put("t", "session-a", "bytes", 1h).status());
    expect_own_words(store_->Get("t", "session-b").status());
    expect_own_words(store_->Stat("t", "session-b").status());
    expect_own_words(store_->Renew("t", "session-b", 1h).status());
    expect_own_words(store_->List("t", "").status());
    expect_own_words(store_->CountAtMost("t", "").status());
  };
  expect_all();
  ASSERT_TRUE(client.RunOne({"ACL", "SETUSER", "default", "-@all", "+acl", "+ping"}).ok());
  expect_all();
  expect_own_words(store_->Delete("t", "session-a"));
  expect_own_words(store_->Touch("t", "session-a", 1h));
  (void)client.RunOne({"ACL", "SETUSER", "default", "-ping"});  // its own PING is refused
  expect_all();
  expect_own_words(OpenStateStore(url_).status());
}

// As the one above, of a server that says what Redis seldom says, or breaks the protocol.
TEST(RedisErrors, OfAnyTextAreOurs) {
  const std::string no_keys = "*2\r\n$1\r\n0\r\n*0\r\n";
  const auto try_reply = [&](const std::string& bad) {
    testing::ScriptedRedis server({"+PONG\r\n", ":3\r\n", no_keys, bad}, /*refuses_more=*/true);
    const auto store = OpenStateStore(StrCat("redis://127.0.0.1:", server.port()));
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const Status status = (*store)->Put("t", "session-a", "bytes", 1h).status();
    ASSERT_FALSE(status.ok()) << bad;
    EXPECT_TRUE(status.message().starts_with("redis: ")) << status.ToString();
    for (const char* const word : {"secret", "10.0.0.7", "MOVED", "\xff"}) {
      EXPECT_EQ(status.message().find(word), std::string::npos) << status.ToString();
    }
  };
  std::vector<std::jthread> waiting;  // of them wait out the time of a command
  for (const char* const bad :
       {"-MOVED 3999 10.0.0.7:6381\r\n", "-OOM secret\r\n", "-secret \xff\xfe\r\n", "?secret\r\n",
        "+secret\r\n+secret\r\n+secret\r\n", "*1\r\n$6\r\nsecret\r\n:1\r\n", "$secret\r\n"}) {
    waiting.emplace_back(try_reply, bad);
  }
}

// Errors with a code are those of Redis, which has not run the command.
TEST(RedisErrors, OfAProxyLeaveTheOutcomeUnknown) {
  const std::string no_keys = "*2\r\n$1\r\n0\r\n*0\r\n";
  for (const auto& [error, unknown] :
       {std::pair("-ERR upstream failure\r\n", true),
        std::pair("-ERR Connection timed out\r\n", true), std::pair("-READONLY no\r\n", false),
        std::pair("-OOM no\r\n", false)}) {
    testing::ScriptedRedis server(
        {"+PONG\r\n", ":3\r\n", no_keys, StrCat(error, ":1\r\n"), StrCat(error, ":1\r\n")});
    const auto store = *OpenStateStore(StrCat("redis://127.0.0.1:", server.port()));
    EXPECT_EQ(IsOutcomeUnknown(store->Put("t", "session-a", "bytes", 1h).status()), unknown)
        << error;
    EXPECT_EQ(IsOutcomeUnknown(store->Delete("t", "session-a")), unknown) << error;
  }
}

TEST(RedisReplies, AreReadInPiecesAndWithinBounds) {
  const std::string bytes = "*3\r\n$3\r\nabc\r\n:42\r\n*1\r\n$-1\r\n-ERR no\r\n";
  RedisReplyReader reader;
  std::vector<std::unique_ptr<RedisReply>> replies;
  for (const char byte : bytes) {
    reader.Add({&byte, 1});
    auto next = reader.Next();
    ASSERT_TRUE(next.ok()) << next.status().ToString();
    if (*next != nullptr) replies.push_back(*std::move(next));
  }
  ASSERT_EQ(replies.size(), 2u);
  ASSERT_EQ(replies[0]->elements.size(), 3u);
  EXPECT_EQ(replies[0]->elements[0]->text, "abc");
  EXPECT_EQ(replies[0]->elements[1]->number, 42);
  EXPECT_EQ(replies[0]->elements[2]->elements[0]->kind, RedisReply::Kind::kNil);
  EXPECT_EQ(replies[1]->kind, RedisReply::Kind::kError);
  for (const std::string bad : {"*2000000000\r\n", "?\r\n", "$9999999999999999999999\r\n"}) {
    RedisReplyReader other;
    other.Add(bad);
    EXPECT_EQ(other.Next().status().code(), Code::kUnavailable) << bad;
  }
}

}  // namespace
}  // namespace polysketch
