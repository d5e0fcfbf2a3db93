#include "server/net/client_credit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/net/http2_frame.h"

namespace polysketch {
namespace {

using Updates = std::vector<std::pair<uint32_t, uint32_t>>;  // streams and increments

Updates UpdatesIn(const std::string& bytes) {
  Updates updates;
  FrameCursor cursor;
  std::string_view rest = bytes, piece;
  for (auto part = cursor.Next(&rest, &piece); part != FrameCursor::Part::kNone;
       part = cursor.Next(&rest, &piece)) {
    EXPECT_EQ(cursor.header().type, FrameType::kWindowUpdate);
    if (part == FrameCursor::Part::kPayload)
      updates.emplace_back(cursor.header().stream, BigEndian(piece));
  }
  EXPECT_TRUE(cursor.at_boundary());
  return updates;
}

class ClientCreditTest : public ::testing::Test {
 protected:
  // What the server has got since the last call.
  Updates Forwarded() { return UpdatesIn(std::exchange(to_server_, {})); }

  std::string to_server_;
  ClientCredit credit_{&to_server_};
};

TEST_F(ClientCreditTest, HoldsTheAnswersToSmallMessages) {
  credit_.Open(1);
  int messages = 0;
  while (messages < 1000) {
    ++messages;
    credit_.OnServerData(1, 100);
    EXPECT_TRUE(credit_.Take(0, 100));
    if (!to_server_.empty()) break;
    EXPECT_TRUE(credit_.Take(1, 100));
  }
  EXPECT_EQ(messages, 328);  // half of 65535 is used up
  EXPECT_EQ(Forwarded(), (Updates{{0, 32800}, {1, 32700}}));
  EXPECT_TRUE(credit_.Take(1, 100));
  EXPECT_EQ(Forwarded(), Updates());
}

TEST_F(ClientCreditTest, WhatEnlargesAWindowIsForwardedAtOnce) {
  EXPECT_TRUE(credit_.Take(0, 1 << 20));
  EXPECT_EQ(Forwarded(), (Updates{{0, 1 << 20}}));
  credit_.SetInitialWindow(0);
  credit_.Open(1);
  EXPECT_TRUE(credit_.Take(1, 10));
  EXPECT_EQ(Forwarded(), (Updates{{1, 10}}));
}

TEST_F(ClientCreditTest, AUsedWindowGetsWhatIsHeld) {
  credit_.Open(1);
  credit_.OnServerData(1, 60);
  EXPECT_TRUE(credit_.Take(1, 60));
  EXPECT_EQ(Forwarded(), Updates());
  credit_.OnServerData(1, 65535 - 2 * 60 - 1);
  EXPECT_EQ(Forwarded(), Updates());
  credit_.OnServerData(1, 1);
  EXPECT_EQ(Forwarded(), (Updates{{1, 60}}));
}

TEST_F(ClientCreditTest, ADueWindowTakesTheOthersAlong) {
  credit_.Open(1);
  credit_.Open(3);
  EXPECT_TRUE(credit_.Take(3, 5));
  EXPECT_TRUE(credit_.Take(1, 65535));
  Updates updates = Forwarded();
  std::ranges::sort(updates);
  EXPECT_EQ(updates, (Updates{{1, 65535}, {3, 5}}));
  credit_.ForwardAll();
  EXPECT_EQ(Forwarded(), Updates());
}

TEST_F(ClientCreditTest, StreamsThatEndDropTheirs) {
  credit_.Open(1);
  EXPECT_TRUE(credit_.Take(0, 5));
  EXPECT_TRUE(credit_.Take(1, 5));
  credit_.Close(1);
  credit_.ForwardAll();
  EXPECT_EQ(Forwarded(), (Updates{{0, 5}}));
  EXPECT_FALSE(credit_.Take(1, 5));
  credit_.OnServerData(1, 65530);  // was on its way; counts for the connection
  EXPECT_TRUE(credit_.Take(0, 20));
  EXPECT_EQ(Forwarded(), (Updates{{0, 20}}));
}

TEST_F(ClientCreditTest, ErrorsAreTheServersToReport) {
  credit_.Open(1);
  for (const uint32_t stream : {0, 1}) {
    EXPECT_FALSE(credit_.Take(stream, 0));
    EXPECT_FALSE(credit_.Take(stream, 0x80000001));
    EXPECT_TRUE(credit_.Take(stream, 10));
    EXPECT_FALSE(credit_.Take(stream, 0x7fffffff - 65535 - 9));
  }
  EXPECT_EQ(Forwarded(), Updates());
  EXPECT_FALSE(credit_.Take(3, 10)) << "no stream of that number is open";
}

TEST_F(ClientCreditTest, TheLargestWindowIsNoError) {
  EXPECT_TRUE(credit_.Take(0, 0x7fffffff - 65535));
  EXPECT_EQ(Forwarded(), (Updates{{0, 0x7fffffff - 65535}}));
  credit_.OnServerData(1, 100);
  EXPECT_TRUE(credit_.Take(0, 100));
  EXPECT_FALSE(credit_.Take(0, 1));
}

TEST_F(ClientCreditTest, ASmallerInitialWindowLeavesNothingToHold) {
  credit_.Open(1);
  credit_.OnServerData(1, 1000);
  credit_.SetInitialWindow(100);
  EXPECT_TRUE(credit_.Take(1, 500));  // still closed
  EXPECT_EQ(Forwarded(), (Updates{{1, 500}}));
  EXPECT_TRUE(credit_.Take(1, 600));
  EXPECT_EQ(Forwarded(), (Updates{{1, 600}}));
  EXPECT_TRUE(credit_.Take(1, 100));
  EXPECT_EQ(Forwarded(), Updates());
}

// A server and a client around the credit, with bytes on their way from and to the server.
struct Connection {
  explicit Connection(uint32_t initial) {
    credit.SetInitialWindow(initial);
    given[0] = known[0] = 65535;
    for (const uint32_t stream : {1, 3, 5}) {
      credit.Open(stream);
      given[stream] = known[stream] = initial;
    }
  }
  void Send(uint32_t stream, int64_t bytes) {
    known[0] -= bytes;
    known[stream] -= bytes;
    sent.emplace_back(stream, static_cast<uint32_t>(bytes));
  }
  // The oldest DATA reaches the client.
  void Arrive() {
    const auto [stream, bytes] = sent.front();
    sent.pop_front();
    credit.OnServerData(stream, bytes);
    given[0] -= bytes;
    given[stream] -= bytes;
  }
  void Give(uint32_t stream, int64_t increment) {
    EXPECT_TRUE(credit.Take(stream, static_cast<uint32_t>(increment)));
    given[stream] += increment;
    ++updates;
  }
  void Learn() {
    for (const auto& [stream, increment] : UpdatesIn(std::exchange(to_server, {}))) {
      known[stream] += increment;
      ++forwarded;
    }
  }

  std::string to_server;
  ClientCredit credit{&to_server};
  std::map<uint32_t, int64_t> given, known;        // windows of the client and of the server
  std::deque<std::pair<uint32_t, uint32_t>> sent;  // DATA on its way
  int updates = 0, forwarded = 0;
};

TEST(ClientCreditModelTest, NoServerWaitsForCreditThatIsHeld) {
  std::mt19937 random(1);
  const auto below = [&random](int64_t n) { return static_cast<int64_t>(random() % n); };
  for (const uint32_t initial : {0U, 1U, 100U, 65535U, 1U << 20}) {
    Connection connection(initial);
    auto& [to_server, credit, given, known, sent, updates, forwarded] = connection;
    int data = 0;
    for (int round = 0; round < 20000; ++round) {
      const auto stream = static_cast<uint32_t>(1 + 2 * below(3));
      if (const int64_t room = std::min(known[0], known[stream]); room > 0 && below(2) == 0) {
        connection.Send(stream, std::min(room, 1 + below(below(50) == 0 ? 1 << 20 : 200)));
        ++data;
      }
      if (!sent.empty() && below(2) == 0) connection.Arrive();
      if (below(4) == 0) connection.Learn();
      for (const uint32_t window : {0U, stream}) {
        const int64_t full = window == 0 ? 65535 : std::max<int64_t>(initial, 50);
        const int64_t room = full - given[window];
        if (room > 0 && below(3) == 0) connection.Give(window, 1 + below(room));
      }
      if (below(20) > 0) continue;
      while (!sent.empty()) connection.Arrive();
      connection.Learn();
      for (const auto& [window, bytes] : given) {
        const int64_t held = bytes - known[window];
        ASSERT_TRUE(held == 0 || (held > 0 && held < known[window])) << window << " of " << initial;
      }
    }
    EXPECT_GT(data, 1000) << initial;
    EXPECT_LT(forwarded, updates) << initial;
  }
}

}  // namespace
}  // namespace polysketch
