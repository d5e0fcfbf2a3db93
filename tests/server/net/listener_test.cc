#include "server/net/listener.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>

namespace polysketch {
namespace {

TEST(Listener, RefusesBadAddresses) {
  for (const std::string address :
       {"", "127.0.0.1", ":80", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536", "::1:80",
        "127.0.0.1:-1", "no such host:80", "unix:"}) {
    const auto listener = Listener::Bind(address);
    ASSERT_FALSE(listener.ok()) << address;
    EXPECT_EQ(listener.status().code(), Code::kInvalidArgument) << listener.status().ToString();
  }
  EXPECT_EQ(Listener::Bind("unix:" + std::string(200, 'x')).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(Listener::Bind("unix:/no/such/folder/socket").status().code(), Code::kUnavailable);
  const auto taken = Listener::Bind("127.0.0.1:0");
  ASSERT_TRUE(taken.ok());
  const auto again = Listener::Bind((*taken)->address());
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.status().code(), Code::kUnavailable);
}

struct Accepted {
  int fd;
  std::string key;
};

class Accepting {
 public:
  explicit Accepting(std::unique_ptr<Listener> listener) : listener_(std::move(listener)) {
    listener_->Start([this](int fd, const std::string& key) {
      const std::lock_guard lock(mutex_);
      accepted_.push_back({fd, key});
      arrived_.notify_all();
    });
  }
  Accepted Next() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(
        arrived_.wait_for(lock, std::chrono::seconds(10), [&] { return !accepted_.empty(); }));
    const Accepted next = accepted_.front();
    accepted_.pop_front();
    return next;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Accepted> accepted_;
  // Last, so that its thread has ended before what the thread writes to is destroyed.
  const std::unique_ptr<Listener> listener_;
};

struct Folder {
  std::string path = ::testing::TempDir() + "listener-XXXXXX";
  Folder() { EXPECT_NE(mkdtemp(path.data()), nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
};

// A client's socket. Returns it connected, with the errno of connect in *error.
int Connect(const sockaddr* address, socklen_t size, int* error) {
  const int fd = socket(address->sa_family, SOCK_STREAM, 0);
  *error = connect(fd, address, size) == 0 ? 0 : errno;
  return fd;
}

TEST(Listener, HandsConnectionsOn) {
  auto listener = Listener::Bind("127.0.0.1:0");
  ASSERT_TRUE(listener.ok());
  const std::string address = (*listener)->address();
  Accepting accepting(*std::move(listener));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int error;
  const int client = Connect(reinterpret_cast<const sockaddr*>(&name), sizeof(name), &error);
  EXPECT_EQ(error, 0);
  const Accepted server = accepting.Next();
  EXPECT_EQ(server.key.substr(0, 10), "127.0.0.1:");
  char byte = 'x';
  EXPECT_EQ(recv(server.fd, &byte, 1, 0), -1);  // it is non-blocking
  EXPECT_EQ(errno, EAGAIN);
  close(client);
  close(server.fd);
}

TEST(Listener, ListensOnAUnixSocketAndReplacesAStaleOne) {
  const Folder folder;
  const std::string path = folder.path + "/socket";
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, path.size());
  const auto connect_client = [&](int* error) {
    return Connect(reinterpret_cast<const sockaddr*>(&name), sizeof(name), error);
  };
  {  // a socket without a listening process
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
    close(fd);
  }
  int error;
  {
    auto listener = Listener::Bind("unix:" + path);
    ASSERT_TRUE(listener.ok()) << listener.status().ToString();
    EXPECT_EQ((*listener)->address(), "unix:" + path);
    struct stat info {};
    EXPECT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777U, 0660U);
    EXPECT_EQ(Listener::Bind("unix:" + path).status().code(), Code::kUnavailable);
    Accepting accepting(*std::move(listener));
    const int first = connect_client(&error);
    EXPECT_EQ(error, 0);
    const int second = connect_client(&error);
    const Accepted a = accepting.Next();
    const Accepted b = accepting.Next();
    EXPECT_EQ(a.key, "unix:1");
    EXPECT_EQ(b.key, "unix:2");
    for (const int fd : {first, second, a.fd, b.fd}) close(fd);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Listener, LeavesAFileThatIsNoSocket) {
  const Folder folder;
  const std::string path = folder.path + "/file";
  std::ofstream(path) << "x";
  EXPECT_EQ(Listener::Bind("unix:" + path).status().code(), Code::kUnavailable);
  EXPECT_TRUE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace polysketch
