#include "server/net/connections.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <vector>

#include "server/net/listener.h"

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
  ~Pair() { close(theirs); }  // `ours` belongs to the table
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

TEST(ConnectionTable, CompletedCallsAreFree) {
  ConnectionTable table({.resets_per_second = 1});
  Pair pair;
  table.Add("10.0.0.1:1", pair.ours);
  for (int i = 0; i < 10000; ++i) table.EndCall(table.BeginCall("ipv4:10.0.0.1:1"), false);
  EXPECT_FALSE(pair.closed());
}

TEST(ConnectionTable, BoundsConnectionsAndCalls) {
  ConnectionTable table({.max_connections = 1, .max_calls = 2});
  Pair first;
  Pair second;
  const auto id = table.Add("10.0.0.1:1", first.ours);
  EXPECT_NE(id, 0U);
  EXPECT_EQ(table.Add("10.0.0.1:2", second.ours), 0U);
  EXPECT_EQ(table.stats().refused, 1U);
  EXPECT_EQ(table.Remove(id), first.ours);
  EXPECT_EQ(table.Remove(id), -1);
  close(first.ours);
  EXPECT_NE(table.Add("10.0.0.1:2", second.ours), 0U);
  // A peer that the table does not know counts against all.
  const auto a = table.BeginCall("unix:");
  const auto b = table.BeginCall("unix:");
  const auto c = table.BeginCall("unix:");
  EXPECT_EQ(b.verdict, Verdict::kAccepted);
  EXPECT_EQ(c.verdict, Verdict::kTooMany);
  // One that has had nothing yet gets its share, and no more.
  const auto d = table.BeginCall("ipv4:10.0.0.1:2");
  const auto e = table.BeginCall("ipv4:10.0.0.1:2");
  const auto f = table.BeginCall("ipv4:10.0.0.1:2");
  EXPECT_EQ(d.verdict, Verdict::kAccepted);
  EXPECT_EQ(e.verdict, Verdict::kAccepted);
  EXPECT_EQ(f.verdict, Verdict::kTooMany);
  for (const auto& call : {a, b, c, d, e, f}) table.EndCall(call, false);
  EXPECT_EQ(table.stats().calls, 0);
}

TEST(Listener, RefusesBadAddresses) {
  ConnectionTable table({});
  for (const char* address : {"", "127.0.0.1", ":80", "127.0.0.1:", "127.0.0.1:http",
                              "127.0.0.1:65536", "::1:80", "127.0.0.1:-1", "no such host:80"}) {
    const auto listener = Listener::Bind(address, &table);
    ASSERT_FALSE(listener.ok()) << address;
    EXPECT_EQ(listener.status().code(), Code::kInvalidArgument) << listener.status().ToString();
  }
  const auto taken = Listener::Bind("127.0.0.1:0", &table);
  ASSERT_TRUE(taken.ok());
  const auto again = Listener::Bind((*taken)->address(), &table);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.status().code(), Code::kUnavailable);
}

int Connect(const std::string& address) {
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)), 0);
  return fd;
}

TEST(Listener, HandsConnectionsOnUpToTheLimitAndForgetsClosedOnes) {
  ConnectionTable table({.max_connections = 2});
  auto listener = Listener::Bind("127.0.0.1:0", &table);
  ASSERT_TRUE(listener.ok());
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<int> accepted;
  (*listener)->Start([&](int fd) {
    std::lock_guard lock(mutex);
    accepted.push_back(fd);
    arrived.notify_all();
  });
  const auto next = [&] {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(
        arrived.wait_for(lock, std::chrono::seconds(10), [&] { return !accepted.empty(); }));
    const int fd = accepted.front();
    accepted.pop_front();
    return fd;
  };
  const int a = Connect((*listener)->address());
  const int b = Connect((*listener)->address());
  const int server_a = next();
  const int server_b = next();
  const int c = Connect((*listener)->address());
  char byte;
  EXPECT_EQ(recv(c, &byte, 1, 0), 0);  // closed at once
  // What gRPC does at the end of a connection.
  shutdown(server_a, SHUT_RDWR);
  close(server_a);
  for (int i = 0; i < 1000 && table.stats().open == 2; ++i) usleep(10000);
  EXPECT_EQ(table.stats().open, 1);
  const int d = Connect((*listener)->address());
  const int server_d = next();
  for (const int fd : {a, b, c, d, server_b, server_d}) close(fd);
}

}  // namespace
}  // namespace polysketch
