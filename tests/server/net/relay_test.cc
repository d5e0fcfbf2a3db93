#include "server/net/relay.h"
#include "server/net/peer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <string>
#include <string_view>

namespace polysketch {
namespace {

constexpr char kSettings[] = "\0\0\0\x04\0\0\0\0\0";

class RelayTest : public ::testing::Test {
 protected:
  RelayTest() {
    relay_ = std::make_unique<Relay>(options_, &table_, &memory_, [this](int fd) {
      on_relay_thread_(fd);
      const std::lock_guard lock(mutex_);
      served_.push_back(fd);
      arrived_.notify_all();
    });
  }
  ~RelayTest() override {
    relay_.reset();
    for (const int fd : open_) close(fd);
  }
  // The socket of a client that has connected.
  int Connect(const std::string& key = "127.0.0.1:4711") {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    relay_->Add(ends[0], key);
    open_.push_back(ends[1]);
    return ends[1];
  }
  // As Connect, over TCP: a closed socket drops what it has not sent when its peer sends more. The
  // client has a small window.
  int ConnectOverTcp() {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener, name, size), 0);
    EXPECT_EQ(listen(listener, 1), 0);
    EXPECT_EQ(getsockname(listener, name, &size), 0);
    const int client = socket(AF_INET, SOCK_STREAM, 0);
    const int window = 8 << 10;
    setsockopt(client, SOL_SOCKET, SO_RCVBUF, &window, sizeof(window));
    EXPECT_EQ(connect(client, name, size), 0);
    const int accepted = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK);
    EXPECT_GE(accepted, 0);
    close(listener);
    relay_->Add(accepted, "127.0.0.1:4711");
    open_.push_back(client);
    return client;
  }
  // The server's side of the next connection.
  int Served() {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, std::chrono::seconds(10), [&] { return !served_.empty(); }))
      return -1;
    const int fd = served_.front();
    served_.pop_front();
    fcntl(fd, F_SETFL, 0);
    open_.push_back(fd);
    return fd;
  }
  bool nothing_served() {
    const std::lock_guard lock(mutex_);
    return served_.empty();
  }
  static void Send(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      ASSERT_GT(sent, 0);
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  // What a server does that ends a connection.
  static void SendAndEnd(int fd, std::string_view bytes) {
    Send(fd, bytes);
    shutdown(fd, SHUT_RDWR);
  }
  // The next `size` bytes, or those before the end.
  static std::string Receive(int fd, size_t size) {
    std::string bytes;
    char buffer[4096];
    while (bytes.size() < size) {
      pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
      if (poll(&readable, 1, 10000) <= 0) break;
      const ssize_t count = recv(fd, buffer, std::min(sizeof(buffer), size - bytes.size()), 0);
      if (count <= 0) break;
      bytes.append(buffer, static_cast<size_t>(count));
    }
    return bytes;
  }
  bool AllClosed() {
    for (int i = 0; i < 1000 && table_.stats().open > 0; ++i) usleep(10000);
    return table_.stats().open == 0;
  }

  const RelayOptions options_{.frames = {}, .handshake_timeout = std::chrono::milliseconds(1500)};
  ConnectionTable table_{{.max_connections = 3}};
  RequestMemory memory_{2 << 20};
  // Called with the server's side of a connection before the relay goes on.
  std::function<void(int)> on_relay_thread_ = [](int) {};
  std::unique_ptr<Relay> relay_;

 private:
  std::vector<int> open_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<int> served_;
};

const std::string kStart = std::string(kHttp2Preface) + std::string(kSettings, 9);
const std::string kPing("\0\0\x08\6\0\0\0\0\0lateping", 17);

// DATA of stream 1.
std::string DataFrames(int count) {
  std::string frames;
  for (int i = 0; i < count; ++i) {
    frames += std::string("\0\x3f\xf7\0\0\0\0\0\1", 9) + std::string(0x3ff7, static_cast<char>(i));
  }
  return frames;
}

TEST_F(RelayTest, MovesBytesBothWaysAfterThePreface) {
  const int client = Connect();
  Send(client, kStart.substr(0, 10));
  usleep(50000);
  EXPECT_TRUE(nothing_served());
  Send(client, kStart.substr(10));
  const int server = Served();
  ASSERT_GE(server, 0);
  EXPECT_EQ(Receive(server, kStart.size()), kStart);
  Send(server, {kSettings, 9});
  EXPECT_EQ(Receive(client, 9), std::string(kSettings, 9));
}

TEST_F(RelayTest, NamesTheClientAtTheServer) {
  Send(Connect("::1:4711"), kStart);
  sockaddr_un name{};
  socklen_t size = sizeof(name);
  ASSERT_EQ(getpeername(Served(), reinterpret_cast<sockaddr*>(&name), &size), 0);
  const std::string text(name.sun_path + 1, size - offsetof(sockaddr_un, sun_path) - 1);
  EXPECT_EQ(ClientPeer("unix-abstract:" + text), "ipv6:[::1]:4711");
}

TEST_F(RelayTest, ASlowReaderGetsEverythingAlsoAfterTheServerHasClosed) {
  const int client = Connect();
  Send(client, kStart);
  const int server = Served();
  const std::string sent = DataFrames(100);
  std::thread writer([&] { SendAndEnd(server, sent); });
  usleep(100000);
  EXPECT_EQ(Receive(client, sent.size() + 1), sent);
  writer.join();
  shutdown(client, SHUT_RDWR);
  EXPECT_TRUE(AllClosed());
}

// A client answers what it reads: by PING, SETTINGS and WINDOW_UPDATE.
TEST_F(RelayTest, AClientThatSendsAfterTheServerHasClosedGetsTheLastBytes) {
  const std::string last = DataFrames(1);
  on_relay_thread_ = [&](int server) {  // the relay still has to write kStart
    SendAndEnd(server, last);
  };
  const int client = Connect();
  Send(client, kStart);
  EXPECT_EQ(Receive(client, last.size() + 1), last);
}

TEST_F(RelayTest, ASlowReaderThatSendsAfterTheServerHasClosedGetsEverything) {
  const int client = Connect();
  Send(client, kStart);
  const int server = Served();
  const std::string sent = DataFrames(100);
  std::thread writer([&] { SendAndEnd(server, sent); });
  std::string got;
  while (got.size() < sent.size() && !HasFailure()) {
    Send(client, kPing);
    got += Receive(client, 16 << 10);
  }
  EXPECT_TRUE(got == sent) << got.size() << " bytes";
  writer.join();
}

TEST_F(RelayTest, BytesAfterTheEndDoNotResetTheClient) {
  const int client = ConnectOverTcp();
  Send(client, kStart);
  const int server = Served();
  Receive(server, kStart.size());
  const std::string last = DataFrames(8);
  SendAndEnd(server, last);
  usleep(100000);  // the relay has written all, of which the client's window takes a part
  Send(client, kPing);
  usleep(100000);
  const std::string got = Receive(client, last.size() + 1);
  EXPECT_TRUE(got == last) << got.size() << " bytes";
  shutdown(client, SHUT_RDWR);
  EXPECT_TRUE(AllClosed());
}

TEST_F(RelayTest, AClientThatStaysAfterTheEndIsClosed) {
  Send(Connect(), kStart);
  const int server = Served();
  Send(server, DataFrames(1));  // which the client never reads
  shutdown(server, SHUT_RDWR);
  EXPECT_TRUE(AllClosed());
}

TEST_F(RelayTest, ASlowServerGetsEverything) {
  const int client = Connect();
  std::string sent = kStart + std::string("\0\0\2\1\4\0\0\0\1\x83\x86", 11);
  for (int i = 0; i < 20; ++i) {
    const std::string message(0x3ff0, static_cast<char>(i));
    sent += std::string("\0\x3f\xf5\0\0\0\0\0\1", 9) + std::string("\0\0\0\x3f\xf0", 5) + message;
  }
  std::thread writer([&] { Send(client, sent); });
  const int server = Served();
  usleep(100000);
  EXPECT_EQ(Receive(server, sent.size()), sent);
  writer.join();
}

TEST_F(RelayTest, TheEndOfEitherSideEndsTheOther) {
  const int first = Connect("127.0.0.1:1");
  Send(first, kStart);
  shutdown(Served(), SHUT_RDWR);
  EXPECT_EQ(Receive(first, 1), "");
  shutdown(first, SHUT_RDWR);
  const int second = Connect("127.0.0.1:2");
  Send(second, kStart);
  const int server = Served();
  Receive(server, kStart.size());
  shutdown(second, SHUT_RDWR);
  EXPECT_EQ(Receive(server, 1), "");
  EXPECT_TRUE(AllClosed());
}

TEST_F(RelayTest, AFloodEndsWithGoAway) {
  const int client = Connect();
  Send(client, kStart);
  const int server = Served();
  std::string flood;
  for (int i = 0; i < 20000; ++i)
    flood += std::string(
        "\0\0\x08\6\0\0\0\0\0"
        "01234567",
        17);
  std::thread writer([&] {
    for (std::string_view rest = flood; !rest.empty();) {
      const ssize_t sent = send(client, rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent <= 0) break;
      rest.remove_prefix(static_cast<size_t>(sent));
    }
  });
  std::thread reader([&] { Receive(server, flood.size()); });
  const std::string answer = Receive(client, 1 << 20);
  EXPECT_NE(answer.find("frames a second that carry nothing"), std::string::npos) << answer;
  writer.join();
  reader.join();
  EXPECT_TRUE(AllClosed());
  EXPECT_EQ(table_.stats().abusive, 1U);
}

TEST_F(RelayTest, ASilentClientIsClosed) {
  const int client = Connect();
  EXPECT_EQ(Receive(client, 1), "");
  EXPECT_TRUE(nothing_served());
}

TEST_F(RelayTest, OneClientsHalfMessagesMakeRoomForAnothers) {
  const std::string open("\0\0\2\1\4\0\0\0\1\x83\x86", 11);
  // A message of 16 MiB of which 16,000 bytes arrive in a frame.
  const auto part = [](bool first) {
    return std::string("\0\x3e\x80\0\0\0\0\0\1", 9) + (first ? std::string("\0\1\0\0\0", 5) : "") +
           std::string(first ? 15995 : 16000, 'm');
  };
  const auto discard = [](int fd) {
    return std::thread([fd] {
      while (!Receive(fd, 4096).empty()) {
      }
    });
  };
  const int greedy = Connect("10.0.0.1:1");
  Send(greedy, kStart + open);
  std::thread first = discard(Served());
  // Which count twice: 1,568,000 of the 1.5 MiB that one client may hold of 2.
  for (int i = 0; i < 49; ++i) Send(greedy, part(i == 0));
  const auto holds = [this](int64_t bytes) {
    for (int i = 0; i < 1000 && memory_.stats().bytes[0] != bytes; ++i) usleep(10000);
    return memory_.stats().bytes[0] == bytes;
  };
  EXPECT_TRUE(holds(1568000));
  const int modest = Connect("10.0.0.2:1");
  Send(modest, kStart + open + part(true));
  std::thread second = discard(Served());
  for (int i = 1; i < 12; ++i) Send(modest, part(false));  // three quarters of what is left
  EXPECT_TRUE(holds(1568000 + 12 * 32000));
  Send(modest, part(false));
  const std::string reset("\0\0\4\3\0\0\0\0\1\0\0\0\x0b", 13);
  EXPECT_EQ(Receive(greedy, reset.size()), reset);
  EXPECT_TRUE(holds(13 * 32000));
  relay_.reset();
  first.join();
  second.join();
  EXPECT_EQ(memory_.stats().bytes[0], 0);
}

// Names of sockets belong to the network namespace, which others share.
TEST_F(RelayTest, AConnectionWhoseNameIsTakenIsClosed) {
  const std::string key = "127.0.0.1:4711";
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string text = PeerName(/*id=*/1, key);
  std::copy(text.begin(), text.end(), name.sun_path + 1);
  const int taken = socket(AF_UNIX, SOCK_STREAM, 0);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  ASSERT_EQ(bind(taken, reinterpret_cast<const sockaddr*>(&name), size), 0);

  Send(Connect(key), kStart);
  EXPECT_TRUE(AllClosed());
  close(taken);
  Send(Connect(key), kStart);
  EXPECT_GE(Served(), 0);
}

}  // namespace
}  // namespace polysketch
