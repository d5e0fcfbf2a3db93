#include "engine/store/redis_client.h"

#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/check.h"
#include "base/logging.h"
#include "base/running_work.h"

namespace polysketch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kReadBytes = 64 << 10;
// Maximum bytes of the replies to one pipeline: a Redis string has at most 512 MiB.
constexpr int64_t kMaxReplyBytes = (int64_t{512} << 20) + (64 << 20);

std::string Encode(const std::vector<RedisClient::Command>& commands) {
  std::string bytes;
  for (const RedisClient::Command& words : commands) {
    bytes += StrCat("*", words.size(), "\r\n");
    for (const std::string_view word : words) {
      bytes += StrCat("$", word.size(), "\r\n");
      bytes.append(word);
      bytes += "\r\n";
    }
  }
  return bytes;
}

}  // namespace

// The time that is left of a deadline.
class RedisClient::Timer {
 public:
  explicit Timer(const RedisDeadline& deadline) : deadline_(deadline) {}

  void AddBytes(int64_t bytes) {
    bytes_ += bytes;
    RunningWork::Moved();
  }
  // 0 when the deadline has passed.
  milliseconds left() const {
    const milliseconds allowed =
        deadline_.wait + milliseconds(bytes_ * 1000 / deadline_.bytes_per_second);
    const auto used = std::chrono::duration_cast<milliseconds>(Clock::now() - start_);
    return std::max(milliseconds(0), allowed - used);
  }
  std::string WhyPassed() const {
    return StrCat("expected an answer within ", deadline_.wait.count(), " ms, found ", bytes_,
                  " bytes sent and received");
  }

 private:
  const RedisDeadline deadline_;
  const Clock::time_point start_ = Clock::now();
  int64_t bytes_ = 0;
};

// Used by one thread at a time.
class RedisClient::Connection {
 public:
  explicit Connection(redisContext* context) : context_(context) {}

  // Sends `bytes` and receives `count` replies. After an error the connection is not used again.
  Result<Replies> Exchange(std::string_view bytes, size_t count, Timer* timer) {
    Replies replies;
    received_ = 0;
    while (true) {
      while (replies.size() < count) {
        PS_ASSIGN_OR_RETURN(std::unique_ptr<RedisReply> reply, reader_.Next());
        if (reply == nullptr) break;
        replies.push_back(std::move(reply));
      }
      if (replies.size() == count) return replies;
      PS_RETURN_IF_ERROR(Wait(!bytes.empty(), timer));
      PS_ASSIGN_OR_RETURN(const size_t sent, Write(bytes, timer));
      bytes.remove_prefix(sent);
      PS_RETURN_IF_ERROR(Read(timer));
    }
  }

 private:
  struct Close {
    void operator()(redisContext* context) const { redisFree(context); }
  };

  // Returns when the socket can be read, or, if `writes`, written.
  Status Wait(bool writes, const Timer* timer) const {
    while (true) {
      const milliseconds left = timer->left();
      if (left.count() == 0) return Unavailable(timer->WhyPassed());
      pollfd socket = {context_->fd, static_cast<int16_t>(writes ? POLLIN | POLLOUT : POLLIN), 0};
      const int ready = poll(&socket, 1, static_cast<int>(left.count()));
      if (ready > 0) return Status();
      if (ready < 0 && errno != EINTR) return Unavailable("poll: ", std::strerror(errno));
    }
  }

  Result<size_t> Write(std::string_view bytes, Timer* timer) const {
    if (bytes.empty()) return size_t{0};
    const ssize_t sent =
        send(context_->fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return size_t{0};
    if (sent < 0) return Unavailable("send: ", std::strerror(errno));
    timer->AddBytes(sent);
    return static_cast<size_t>(sent);
  }

  Status Read(Timer* timer) {
    char bytes[kReadBytes];
    const ssize_t got = recv(context_->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Status();
    if (got < 0) return Unavailable("recv: ", std::strerror(errno));
    if (got == 0) return Unavailable("the server closed the connection");
    timer->AddBytes(got);
    received_ += got;
    if (received_ > kMaxReplyBytes) {
      return Unavailable("expected replies of at most ", kMaxReplyBytes, " bytes, found more");
    }
    reader_.Add({bytes, static_cast<size_t>(got)});
    return Status();
  }

  const std::unique_ptr<redisContext, Close> context_;
  RedisReplyReader reader_;
  int64_t received_ = 0;  // by this exchange
};

RedisClient::RedisClient(RedisUrl url, RedisDeadline deadline)
    : url_(std::move(url)), deadline_(deadline) {}

RedisClient::~RedisClient() = default;

Result<std::unique_ptr<RedisReply>> RedisClient::RunOne(const Command& command) {
  PS_ASSIGN_OR_RETURN(Replies replies, Run(std::vector<Command>{command}));
  return std::move(replies.front());
}

Result<RedisClient::Replies> RedisClient::Run(const std::vector<Command>& commands) {
  Result<Replies> sent = Send(Encode(commands), commands.size());
  RunningWork::Moved();
  if (!sent.ok()) return sent;
  Replies replies = *std::move(sent);
  for (const auto& reply : replies) {
    if (reply->kind != RedisReply::Kind::kError) continue;
    Status failed = Unreachable(reply->text);
    if (!reply->text.starts_with("OOM")) return failed;
    return ResourceExhausted(failed.message()).WithReason(Reason::kStateStoreFull);
  }
  return replies;
}

Result<RedisClient::Replies> RedisClient::Send(const std::string& bytes, size_t count) {
  Timer timer(deadline_);
  if (std::unique_ptr<Connection> connection = TakeIdle(); connection != nullptr) {
    Result<Replies> replies = connection->Exchange(bytes, count, &timer);
    if (replies.ok()) {
      KeepIdle(std::move(connection));
      return replies;
    }
    // A server that restarts closes all connections.
    {
      std::lock_guard lock(mutex_);
      idle_.clear();
    }
    if (timer.left().count() == 0) return Unreachable(replies.status().message());
  }
  PS_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection, Connect(&timer));
  Result<Replies> replies = connection->Exchange(bytes, count, &timer);
  if (!replies.ok()) return Unreachable(replies.status().message());
  KeepIdle(std::move(connection));
  return replies;
}

Result<std::unique_ptr<RedisClient::Connection>> RedisClient::Connect(Timer* timer) {
  const int64_t left = std::max<int64_t>(1, timer->left().count());
  const timeval timeout = {left / 1000, left % 1000 * 1000};
  redisContext* const context = redisConnectWithTimeout(url_.host.c_str(), url_.port, timeout);
  if (context == nullptr) return Unreachable("out of memory");
  auto connection = std::make_unique<Connection>(context);
  if (context->err != 0) return Unreachable(context->errstr);
  PS_RETURN_IF_ERROR(Greet(connection.get(), timer));
  return connection;
}

Status RedisClient::Greet(Connection* connection, Timer* timer) {
  std::vector<Command> commands;
  std::string password;
  if (!url_.password_file.empty()) {
    std::ifstream file(url_.password_file, std::ios::binary);
    if (!std::getline(file, password) || password.empty()) {
      LogWarning("no_redis_password", {{"password_file", url_.password_file}});
      return Unreachable("cannot read the password file");
    }
    commands.push_back(url_.user.empty() ? Command{"AUTH", password}
                                         : Command{"AUTH", url_.user, password});
  }
  const std::string database = std::to_string(url_.database);
  if (url_.database != 0) commands.push_back({"SELECT", database});
  if (commands.empty()) return Status();
  const Result<Replies> replies = connection->Exchange(Encode(commands), commands.size(), timer);
  if (!replies.ok()) return Unreachable(replies.status().message());
  for (const auto& reply : *replies) {
    if (reply->kind == RedisReply::Kind::kError) return Unreachable(reply->text);
  }
  return Status();
}

std::unique_ptr<RedisClient::Connection> RedisClient::TakeIdle() {
  std::lock_guard lock(mutex_);
  if (idle_.empty()) return nullptr;
  std::unique_ptr<Connection> connection = std::move(idle_.back());
  idle_.pop_back();
  return connection;
}

void RedisClient::KeepIdle(std::unique_ptr<Connection> connection) {
  std::lock_guard lock(mutex_);
  idle_.push_back(std::move(connection));
}

Status RedisClient::Unreachable(std::string_view why) { return Unavailable("redis: ", why); }

}  // namespace polysketch
