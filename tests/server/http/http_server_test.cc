// Connections of the HTTP server: which one gives way to a new one, and slow ones.
#include "server/http/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "tests/testing/http_socket.h"

namespace polysketch {
namespace {

using namespace std::chrono_literals;

using Socket = testing::HttpSocket;

class HttpServerTest : public ::testing::Test {
 protected:
  // "/now" and "/probe" are answered at once, other paths when the test releases them.
  void Start(const HttpLimits& limits) {
    HttpServer::Guards guards;
    guards.is_probe = [](std::string_view path) { return path == "/probe"; };
    auto server = HttpServer::Start("127.0.0.1:0", limits, std::move(guards),
                                    [this](const std::shared_ptr<HttpExchange>& exchange) {
                                      const std::string& path = exchange->request().path;
                                      if (path == "/now" || path == "/probe")
                                        return exchange->Reply(200, "text/plain", "ok\n");
                                      std::lock_guard lock(mutex_);
                                      running_.push_back(exchange);
                                    });
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = *std::move(server);
  }
  void TearDown() override { server_.reset(); }
  // Whether at least `count` requests run before `patience` ends.
  bool Run(size_t count, std::chrono::milliseconds patience) {
    for (auto waited = 0ms; waited < patience; ++waited) {
      {
        std::lock_guard lock(mutex_);
        if (running_.size() >= count) return true;
      }
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }
  void WaitForRunning(size_t count) {
    if (!Run(count, 5000ms)) FAIL() << "expected " << count << " running requests";
  }
  void Release() {
    std::lock_guard lock(mutex_);
    for (const auto& exchange : running_) exchange->Reply(200, "text/plain", "late\n");
    running_.clear();
  }
  const std::string& address() const { return server_->address(); }

  std::mutex mutex_;
  std::vector<std::shared_ptr<HttpExchange>> running_;  // guarded by mutex_
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, LocalhostIsAnAddress) {
  auto server = HttpServer::Start("localhost:0", {}, {}, [](const auto&) {});
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  EXPECT_TRUE((*server)->address().starts_with("localhost:"));
  EXPECT_EQ(HttpServer::Start("example.org:0", {}, {}, [](const auto&) {}).status().code(),
            Code::kInvalidArgument);
}

TEST_F(HttpServerTest, TheLongestIdleConnectionGivesWay) {
  Start({.max_connections = 3});
  const Socket first(address()), second(address()), third(address());
  for (const Socket* socket : {&second, &third, &first}) {
    socket->Get("/now");
    EXPECT_EQ(socket->Status(), 200);
  }
  const Socket fourth(address());
  fourth.Get("/now");
  EXPECT_EQ(fourth.Status(), 200);
  EXPECT_TRUE(second.Closed(1s));
  EXPECT_FALSE(third.Closed(50ms));
  EXPECT_FALSE(first.Closed(0ms));
}

TEST_F(HttpServerTest, OfThePeerWithTheMost) {
  Start({.max_connections = 4});
  const Socket honest(address(), "127.0.0.2");
  honest.Send("GET /now HTTP/1.1\r\n");  // the longest wait of all
  std::vector<Socket> flood;
  for (int i = 0; i < 20; ++i) {
    flood.emplace_back(address(), "127.0.0.3");
    flood.back().Send("GET /now HT");
  }
  honest.Send("Host: x\r\n\r\n");
  EXPECT_EQ(honest.Status(), 200);
  int closed = 0;
  for (const Socket& socket : flood) closed += socket.Closed(20ms);
  EXPECT_EQ(closed, 17);
}

TEST_F(HttpServerTest, ABodyGivesWayAfterHeadersOnly) {
  Start({.max_connections = 2});
  const Socket uploads(address()), waits(address());
  uploads.Send("POST /now HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc");
  waits.Send("GET /");
  std::this_thread::sleep_for(50ms);
  const Socket third(address());
  EXPECT_TRUE(waits.Closed(1s));
  third.Send("POST /now HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc");
  std::this_thread::sleep_for(50ms);
  const Socket fourth(address());
  EXPECT_TRUE(uploads.Closed(1s));
  EXPECT_FALSE(third.Closed(50ms));
}

TEST_F(HttpServerTest, RunningRequestsStayAndProbesGetIn) {
  Start({.max_connections = 8});
  std::vector<Socket> running;
  for (int i = 0; i < 8; ++i) {
    running.emplace_back(address());
    running.back().Get("/late");
  }
  WaitForRunning(8);
  for (int i = 0; i < 30; ++i) {
    const Socket probe(address());
    probe.Get("/probe");
    EXPECT_EQ(probe.Status(), 200) << i;
    const Socket other(address());
    other.Get("/now");
    EXPECT_EQ(other.Status(), 503) << i;
  }
  // Slow ones at the places of probes give way to others.
  std::vector<Socket> slow;
  for (int i = 0; i < 40; ++i) {
    slow.emplace_back(address(), "127.0.0.9");
    slow.back().Send("GET /probe");
  }
  const Socket probe(address());
  probe.Get("/probe");
  EXPECT_EQ(probe.Status(), 200);
  Release();
  for (const Socket& socket : running) EXPECT_EQ(socket.Status(), 200);
}

TEST_F(HttpServerTest, RunningRequestsOfOneClientLeaveRoomForOthers) {
  Start({.max_connections = 8});
  std::vector<Socket> running;
  const auto run = [&](const char* from, int count) {
    for (int i = 0; i < count; ++i) {
      running.emplace_back(address(), from);
      running.back().Get("/late");
    }
    WaitForRunning(running.size());
  };
  const auto status = [&](const char* from) {
    const Socket socket(address(), from);
    socket.Get("/now");
    return socket.Status();
  };
  run("127.0.0.1", 8);
  EXPECT_EQ(status("127.0.0.1"), 503);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(status("127.0.0.2"), 200) << i;
  run("127.0.0.2", 2);  // of the third more that max_connections leaves
  EXPECT_EQ(status("127.0.0.2"), 503);
  EXPECT_EQ(status("127.0.0.3"), 200);
  Release();
  for (const Socket& socket : running) EXPECT_EQ(socket.Status(), 200);
  EXPECT_EQ(status("127.0.0.1"), 200);
}

TEST_F(HttpServerTest, AClientThatLeavesGivesItsPlaceBack) {
  Start({.max_connections = 2});
  for (int i = 0; i < 5; ++i) {
    {
      // Refused until the connections of the round before have ended.
      std::unique_ptr<Socket> first;
      bool runs = false;
      for (int tries = 0; tries < 100 && !runs; ++tries) {
        first = std::make_unique<Socket>(address());
        first->Get("/late");
        runs = Run(static_cast<size_t>(i) + 1, 50ms);
      }
      ASSERT_TRUE(runs) << i;
      const Socket second(address());
      second.Send("POST /late HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc");
    }
    const auto status = [this] {
      const Socket other(address());
      other.Get("/now");
      return other.Status();
    };
    int answered = status();
    for (int tries = 0; tries < 100 && answered != 200; ++tries) {
      std::this_thread::sleep_for(50ms);
      answered = status();
    }
    EXPECT_EQ(answered, 200) << i;
  }
  Release();  // the server waits for its exchanges
}

// The status of the response to a body of 1,000 bytes that comes in parts of `part` bytes.
int StatusOfSlowBody(const std::string& address, size_t part) {
  const Socket client(address);
  client.Send("POST /now HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n");
  std::atomic<bool> answered{false};
  std::thread sender([&] {
    for (size_t sent = 0; sent < 1000 && !answered; sent += part) {
      client.Send(std::string(part, 'x'));
      std::this_thread::sleep_for(50ms);
    }
  });
  const int status = client.Status();
  answered = true;
  sender.join();
  return status;
}

// With a length, in chunks, and before the client's first byte of the body; beside a connection that
// waits for its next request.
TEST_F(HttpServerTest, ADrainRefusesRequestsWhoseBodyArrives) {
  Start({});
  const Socket idle(address()), waits(address());
  idle.Get("/now");
  EXPECT_EQ(idle.Status(), 200);
  waits.Get("/late");
  WaitForRunning(1);
  std::vector<Socket> uploads;
  for (const char* rest :
       {"Content-Length: 9\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nab",
        "Content-Length: 9\r\n\r\n", "Content-Length: 9\r\nExpect: 100-continue\r\n\r\n"}) {
    uploads.emplace_back(address());
    uploads.back().Send(StrCat("POST /now HTTP/1.1\r\nHost: x\r\n", rest));
  }
  EXPECT_EQ(uploads.back().Status(), 100);
  std::this_thread::sleep_for(50ms);
  server_->Drain(Unavailable("the server ends").WithReason(Reason::kDraining));
  EXPECT_EQ(server_->running(), 1 + std::ssize(uploads));
  EXPECT_TRUE(idle.Closed(1s));
  for (const Socket& upload : uploads) {
    upload.Send("defghi");
    const std::string answer = upload.ReadAll();
    EXPECT_NE(answer.find("HTTP/1.1 503 "), std::string::npos) << answer;
    EXPECT_NE(answer.find("the server ends"), std::string::npos) << answer;
    upload.EndOfInput();
  }
  for (int i = 0; i < 1000 && server_->running() > 1; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(server_->running(), 1);
  Release();
  EXPECT_EQ(waits.Status(), 200);
}

TEST_F(HttpServerTest, ABodyThatDripsEnds) {
  Start({.read_timeout = 300ms, .least_body_bytes_per_second = 500});
  EXPECT_EQ(StatusOfSlowBody(address(), 1), 408);
  EXPECT_EQ(StatusOfSlowBody(address(), 100), 200);
}

}  // namespace
}  // namespace polysketch
