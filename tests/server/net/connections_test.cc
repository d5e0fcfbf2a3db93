#include "server/net/connections.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/logging.h"
#include "base/status.h"
#include "server/net/peer.h"

namespace polysketch {
namespace {

using Verdict = ConnectionTable::Verdict;

sockaddr_storage Ipv6(const char* text, uint16_t port) {
  sockaddr_storage storage{};
  auto& address = reinterpret_cast<sockaddr_in6&>(storage);
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  EXPECT_EQ(inet_pton(AF_INET6, text, &address.sin6_addr), 1);
  return storage;
}

TEST(ConnectionKey, IsTheSameForAddressAndPeer) {
  sockaddr_storage v4{};
  auto& address = reinterpret_cast<sockaddr_in&>(v4);
  address.sin_family = AF_INET;
  address.sin_port = htons(4711);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(ConnectionKey(v4), "127.0.0.1:4711");
  EXPECT_EQ(ConnectionKey("ipv4:127.0.0.1:4711"), "127.0.0.1:4711");
  EXPECT_EQ(ConnectionKey(Ipv6("::1", 80)), "::1:80");
  EXPECT_EQ(ConnectionKey("ipv6:%5B::1%5D:80"), "::1:80");
  EXPECT_EQ(ConnectionKey("ipv6:[::1]:80"), "::1:80");
  EXPECT_EQ(ConnectionKey(Ipv6("::ffff:10.0.0.7", 80)), "10.0.0.7:80");
}

// Both ends of a connected socket.
struct Pair {
  int ours = -1;
  int theirs = -1;
  Pair() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    ours = ends[0];
    theirs = ends[1];
  }
  ~Pair() {
    close(theirs);
    close(ours);
  }
  bool closed() const {
    char byte;
    return recv(theirs, &byte, 1, MSG_DONTWAIT) == 0;
  }
};

TEST(ConnectionTable, ClosesAConnectionWithMoreCallsThanAnHonestOneCanHave) {
  ConnectionTable table({.max_connections = 4, .max_calls = 100, .max_calls_per_connection = 3});
  Pair flooding;
  Pair other;
  ASSERT_NE(table.Add("10.0.0.1:1", flooding.ours), 0U);
  ASSERT_NE(table.Add("10.0.0.1:2", other.ours), 0U);
  std::vector<ConnectionTable::Call> calls;
  for (int i = 0; i < 3; ++i) calls.push_back(table.BeginCall("ipv4:10.0.0.1:1"));
  EXPECT_EQ(calls.back().verdict, Verdict::kAccepted);
  EXPECT_FALSE(flooding.closed());
  calls.push_back(table.BeginCall("ipv4:10.0.0.1:1"));
  EXPECT_EQ(calls.back().verdict, Verdict::kAbusive);
  EXPECT_TRUE(flooding.closed());
  EXPECT_EQ(table.BeginCall("ipv4:10.0.0.1:2").verdict, Verdict::kAccepted);
  EXPECT_FALSE(other.closed());
  for (const auto& call : calls) table.EndCall(call, true);
  EXPECT_EQ(table.stats().calls, 1);
  EXPECT_EQ(table.stats().abusive, 1U);
}

TEST(ConnectionTable, ClosesAConnectionThatAbortsTooFast) {
  ConnectionTable table(
      {.max_calls = 1000, .max_calls_per_connection = 100, .resets_per_second = 10});
  Pair pair;
  table.Add("10.0.0.1:1", pair.ours);
  auto now = std::chrono::steady_clock::now();
  const auto abort_call = [&] { table.EndCall(table.BeginCall("ipv4:10.0.0.1:1"), true, now); };
  // For ever at the sustained rate.
  for (int i = 0; i < 1000; ++i) {
    abort_call();
    now += std::chrono::milliseconds(100);
  }
  EXPECT_FALSE(pair.closed());
  for (int i = 0; i < 90; ++i) abort_call();
  EXPECT_FALSE(pair.closed());
  for (int i = 0; i < 20; ++i) abort_call();
  EXPECT_TRUE(pair.closed());
}

// A client that connects again each time it is closed must not fill the log.
TEST(ConnectionTable, LogsClosedConnectionsOnceASecond) {
  ConnectionTable table({.max_connections = 40, .max_calls = 100, .closes_in_burst = 100});
  const auto began = std::chrono::steady_clock::now();
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 40; ++i) {
    Pair pair;
    const ConnectionTable::Id id = table.Add(StrCat("10.0.0.1:", i), pair.ours);
    table.Close(id, "a test");
    EXPECT_TRUE(pair.closed());
    table.Remove(id);
  }
  FlushLog();
  const std::string log = ::testing::internal::GetCapturedStderr();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  EXPECT_EQ(table.stats().abusive, 40U);
  int lines = 0;
  for (size_t at = 0; (at = log.find("connection_closed", at)) != std::string::npos; ++at) ++lines;
  EXPECT_LE(lines, took.count() + 2) << log;
}

TEST(ConnectionTable, CompletedCallsAreFree) {
  ConnectionTable table({.resets_per_second = 1});
  Pair pair;
  table.Add("10.0.0.1:1", pair.ours);
  for (int i = 0; i < 10000; ++i) table.EndCall(table.BeginCall("ipv4:10.0.0.1:1"), false);
  EXPECT_FALSE(pair.closed());
}

TEST(ConnectionTable, BoundsConnectionsAndCalls) {
  ConnectionTable table({.max_connections = 1, .max_calls = 4});
  Pair first;
  Pair second;
  const auto id = table.Add("10.0.0.1:1", first.ours);
  EXPECT_NE(id, 0U);
  EXPECT_EQ(table.Add("10.0.0.1:2", second.ours), 0U);
  EXPECT_EQ(table.stats().refused, 1U);
  table.Remove(id);
  table.Remove(id);
  EXPECT_NE(table.Add("10.0.0.1:2", second.ours), 0U);
  // A peer that the table does not know counts against all.
  std::vector<ConnectionTable::Call> calls;
  const auto begin = [&](const char* peer) {
    calls.push_back(table.BeginCall(peer));
    return calls.back().verdict;
  };
  for (int i = 0; i < 4; ++i) EXPECT_EQ(begin("unix:"), Verdict::kAccepted) << i;
  EXPECT_EQ(begin("unix:"), Verdict::kTooMany);
  // One that has had nothing yet gets its share, and no more.
  for (int i = 0; i < 2; ++i) EXPECT_EQ(begin("ipv4:10.0.0.1:2"), Verdict::kAccepted) << i;
  EXPECT_EQ(begin("ipv4:10.0.0.1:2"), Verdict::kTooMany);
  for (const auto& call : calls) table.EndCall(call, false);
  EXPECT_EQ(table.stats().calls, 0);
}

// A table that one peer, 10.0.0.1, has filled with 25 connections of 4 calls each.
class CrowdedTable : public ::testing::Test {
 protected:
  CrowdedTable() {
    for (int i = 1; i <= 25; ++i) Connect(StrCat("10.0.0.1:", i));
    for (int i = 0; i < 100; ++i)
      EXPECT_EQ(Begin(StrCat("10.0.0.1:", i % 25 + 1)), Verdict::kAccepted);
  }
  ~CrowdedTable() override {
    for (const auto& call : calls_) table_.EndCall(call, false);
    EXPECT_EQ(table_.stats().calls, 0);
  }
  void Connect(const std::string& key) {
    pairs_.push_back(std::make_unique<Pair>());
    EXPECT_NE(table_.Add(key, pairs_.back()->ours), 0U);
  }
  Verdict Begin(const std::string& key) {
    calls_.push_back(table_.BeginCall("ipv4:" + key));
    return calls_.back().verdict;
  }
  // Number of calls on a connection until one is refused.
  int Accepted(const std::string& key) {
    int accepted = 0;
    while (accepted < 1000 && Begin(key) == Verdict::kAccepted) ++accepted;
    return accepted;
  }
  ConnectionTable table_{{.max_connections = 100, .max_calls = 100}};
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::vector<ConnectionTable::Call> calls_;
};

TEST_F(CrowdedTable, EachPeerGetsAnEqualShareOfCallsHoweverManyConnectionsAnotherHas) {
  EXPECT_EQ(Begin("10.0.0.1:7"), Verdict::kTooMany);
  Connect("10.0.0.2:1");
  EXPECT_EQ(Accepted("10.0.0.2:1"), 50);
  EXPECT_EQ(Begin("10.0.0.1:7"), Verdict::kTooMany);
  // The share is one of the peer, not of a connection.
  Connect("10.0.0.3:1");
  Connect("10.0.0.3:2");
  EXPECT_EQ(Accepted("10.0.0.3:1"), 33);
  // HTTP connections are not in the table: their peers have the same share.
  EXPECT_EQ(Accepted("10.0.0.4:1"), 25);
  EXPECT_EQ(Begin("10.0.0.4:2"), Verdict::kTooMany);
}

TEST_F(CrowdedTable, AFullPeerGetsAFirstCallOnEachConnection) {
  Connect("10.0.0.1:26");
  EXPECT_EQ(Accepted("10.0.0.1:26"), 3) << "a part of 26 of its peer's share of 100";
  for (int i = 0; i < 40; ++i) Connect(StrCat("10.0.0.", i + 2, ":1"));
  Connect("10.0.0.1:27");
  EXPECT_EQ(Accepted("10.0.0.1:27"), 1) << "its peer's share is 2";
}

TEST_F(CrowdedTable, APeerThatHasLeftHasNoShare) {
  const auto id = table_.Add("10.0.0.2:1", -1);
  table_.Remove(id);
  Connect("10.0.0.3:1");
  EXPECT_EQ(Accepted("10.0.0.3:1"), 50);
}

// A table of 4 connections that one client fills.
class FullTable : public ::testing::Test {
 protected:
  FullTable() {
    for (int i = 0; i < 4; ++i)
      EXPECT_NE(table_.Add(StrCat("10.0.0.1:", i + 1), pairs_[i].ours), 0U);
  }
  ConnectionTable table_{{.max_connections = 4}};
  Pair pairs_[4];
  Pair newcomer_;
};

TEST_F(FullTable, AnotherClientGetsAPlaceWithoutCalls) {
  const auto call = table_.BeginCall("ipv4:10.0.0.1:1");
  EXPECT_NE(table_.Add("10.0.0.2:1", newcomer_.ours), 0U);
  EXPECT_FALSE(pairs_[0].closed());
  EXPECT_TRUE(pairs_[1].closed());  // the one that has been idle longest
  EXPECT_FALSE(pairs_[2].closed());
  EXPECT_EQ(table_.stats().refused, 1U);
  EXPECT_EQ(table_.stats().abusive, 0U);
  table_.EndCall(call, false);
}

TEST_F(FullTable, TheSameClientIsRefused) {
  EXPECT_EQ(table_.Add("10.0.0.1:9", newcomer_.ours), 0U);
  for (const Pair& pair : pairs_) EXPECT_FALSE(pair.closed());
}

TEST(ConnectionTable, AFloodOfCallsRefusesItsOwnClientOnly) {
  ConnectionTable table({.max_calls = 4, .max_calls_per_connection = 100});
  Pair pairs[3];
  ASSERT_NE(table.Add("10.0.0.1:1", pairs[0].ours), 0U);
  std::vector<ConnectionTable::Call> calls;
  for (int i = 0; i < 9; ++i) calls.push_back(table.BeginCall("ipv4:10.0.0.1:1"));
  EXPECT_EQ(table.Add("10.0.0.1:2", pairs[1].ours), 0U);
  EXPECT_NE(table.Add("10.0.0.2:1", pairs[2].ours), 0U);
  table.EndCall(calls.back(), true);
  calls.pop_back();
  EXPECT_NE(table.Add("10.0.0.1:2", pairs[1].ours), 0U);
  for (const auto& call : calls) table.EndCall(call, false);
}

TEST(ConnectionTable, AClientWhoseConnectionsAreClosedFastGetsNoNewOne) {
  ConnectionTable table({.closes_per_second = 10, .closes_in_burst = 3});
  const auto start = std::chrono::steady_clock::now();
  Pair pair;
  const auto comes_and_is_closed = [&](const std::string& address, std::chrono::milliseconds at) {
    const ConnectionTable::Id id = table.Add(StrCat(address, ":1"), pair.ours, start + at);
    table.Close(id, "a rule", start + at);
    table.Close(id, "again", start + at);  // is not counted
    table.Remove(id);
    return id != 0;
  };
  using std::chrono::milliseconds;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(comes_and_is_closed("10.0.0.1", milliseconds(0)));
  EXPECT_FALSE(comes_and_is_closed("10.0.0.1", milliseconds(0)));
  EXPECT_TRUE(comes_and_is_closed("10.0.0.2", milliseconds(0)));
  EXPECT_FALSE(comes_and_is_closed("10.0.0.1", milliseconds(90)));
  EXPECT_TRUE(comes_and_is_closed("10.0.0.1", milliseconds(110)));
  EXPECT_FALSE(comes_and_is_closed("10.0.0.1", milliseconds(110)));
  EXPECT_EQ(table.stats().abusive, 5U);
  EXPECT_EQ(table.stats().refused, 3U);
  // A client that leaves by itself, and the first close of any client, cost no new connection.
  for (int i = 0; i < 200; ++i) {
    const ConnectionTable::Id id = table.Add("10.0.0.3:1", pair.ours, start);
    EXPECT_NE(id, 0U);
    table.Remove(id);
    EXPECT_TRUE(comes_and_is_closed(StrCat("10.0.1.", i), milliseconds(1000 + 20 * i)));
  }
}

TEST_F(FullTable, CallsEndOnlyForAClientOfMoreThanHalf) {
  std::vector<ConnectionTable::Call> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(table_.BeginCall(StrCat("ipv4:10.0.0.1:", i + 1)));
  Pair more[2];
  EXPECT_NE(table_.Add("10.0.0.2:1", newcomer_.ours), 0U);
  EXPECT_TRUE(pairs_[0].closed());
  table_.Remove(1);
  EXPECT_NE(table_.Add("10.0.0.3:1", more[0].ours), 0U);
  table_.Remove(2);
  EXPECT_EQ(table_.Add("10.0.0.4:1", more[1].ours), 0U);  // the first has half of them now
  for (const auto& call : calls) table_.EndCall(call, false);
}

}  // namespace
}  // namespace polysketch
