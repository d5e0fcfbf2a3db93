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
// Of the server's words in a line of the log.
constexpr size_t kMaxShown = 200;
// Maximum bytes of the replies to one pipeline: a Redis string has at most 512 MiB.
constexpr int64_t kMaxReplyBytes = (int64_t{512} << 20) + (64 << 20);

void Encode(const RedisClient::Command& words, std::string* bytes) {
  *bytes += StrCat("*", words.size(), "\r\n");
  for (const std::string_view word : words) {
    *bytes += StrCat("$", word.size(), "\r\n");
    bytes->append(word);
    *bytes += "\r\n";
  }
}

std::string Encoded(const std::vector<RedisClient::Command>& commands) {
  std::string bytes;
  for (const RedisClient::Command& command : commands) Encode(command, &bytes);
  return bytes;
}

// `said`: for clients. `why`: for the log, of the server or the system.
Status Failed(std::string_view said, std::string_view why) {
  std::string shown(why.substr(0, kMaxShown));
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  LogWarning("redis_failed", {{"what", said}, {"why", shown}});
  return Unavailable("redis: ", said);
}

Status Broken(std::string_view why) { return Failed("the connection failed", why); }

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
  Status Passed() const {
    return Failed("no answer in time", StrCat("expected one within ", deadline_.wait.count(),
                                              " ms, found ", bytes_, " bytes sent and received"));
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

  // Sends `count` encoded commands, and a PING, which is in `*bytes` meanwhile. Receives the
  // replies to the commands, error replies too. Sets `*sent` once a byte of them may have arrived.
  // After an error the connection is not used again.
  Result<Replies> Exchange(std::string* bytes, size_t count, Timer* timer, bool* sent) {
    const std::string number = std::to_string(++exchanges_);
    const size_t size = bytes->size();
    Encode({"PING", number}, bytes);
    Result<Replies> received = Receive(*bytes, count + 1, timer, sent);
    bytes->resize(size);
    if (!received.ok()) return received;
    Replies replies = *std::move(received);
    const std::unique_ptr<RedisReply> last = std::move(replies.back());
    replies.pop_back();
    in_step_ = last->is_text() && last->text == number;
    const auto is_error = [](const auto& reply) { return reply->kind == RedisReply::Kind::kError; };
    // A server that refuses every command refuses PING too.
    const bool refused = is_error(last) && std::all_of(replies.begin(), replies.end(), is_error);
    if (in_step_ || refused) return replies;
    return Broken("expected the replies to the commands, found one that belongs to none");
  }

  // Whether the last exchange had its replies, and nothing has arrived since, not even the end of
  // the connection.
  bool IsInStep() const {
    if (!in_step_) return false;
    char byte = 0;
    const ssize_t got = recv(context_->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got < 0 && errno == EAGAIN;
  }

 private:
  struct Close {
    void operator()(redisContext* context) const { redisFree(context); }
  };

  Result<Replies> Receive(std::string_view bytes, size_t count, Timer* timer, bool* sent) {
    Replies replies;
    received_ = 0;
    while (true) {
      while (replies.size() < count) {
        Result<std::unique_ptr<RedisReply>> reply = reader_.Next();
        if (!reply.ok()) return Broken(reply.status().message());
        if (*reply == nullptr) break;
        replies.push_back(*std::move(reply));
      }
      if (replies.size() == count) {
        if (bytes.empty() && reader_.IsEmpty()) return replies;
        return Broken("expected the end of the replies, found more");
      }
      PS_RETURN_IF_ERROR(Wait(!bytes.empty(), timer));
      PS_ASSIGN_OR_RETURN(const size_t written, Write(bytes, timer));
      *sent |= written > 0;
      bytes.remove_prefix(written);
      PS_RETURN_IF_ERROR(Read(timer));
    }
  }

  // Returns when the socket can be read, or, if `writes`, written.
  Status Wait(bool writes, const Timer* timer) const {
    while (true) {
      const milliseconds left = timer->left();
      if (left.count() == 0) return timer->Passed();
      pollfd socket = {context_->fd, static_cast<int16_t>(writes ? POLLIN | POLLOUT : POLLIN), 0};
      const int ready = poll(&socket, 1, static_cast<int>(left.count()));
      if (ready > 0) return Status();
      if (ready < 0 && errno != EINTR) return Broken(StrCat("poll: ", std::strerror(errno)));
    }
  }

  Result<size_t> Write(std::string_view bytes, Timer* timer) const {
    if (bytes.empty()) return size_t{0};
    const ssize_t sent =
        send(context_->fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return size_t{0};
    if (sent < 0) return Broken(StrCat("send: ", std::strerror(errno)));
    timer->AddBytes(sent);
    return static_cast<size_t>(sent);
  }

  Status Read(Timer* timer) {
    char bytes[kReadBytes];
    const ssize_t got = recv(context_->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Status();
    if (got < 0) return Broken(StrCat("recv: ", std::strerror(errno)));
    if (got == 0) return Broken("the server closed the connection");
    timer->AddBytes(got);
    received_ += got;
    if (received_ > kMaxReplyBytes) {
      return Broken(StrCat("expected replies of at most ", kMaxReplyBytes, " bytes, found more"));
    }
    reader_.Add({bytes, static_cast<size_t>(got)});
    return Status();
  }

  const std::unique_ptr<redisContext, Close> context_;
  RedisReplyReader reader_;
  int64_t received_ = 0;   // by this exchange
  int64_t exchanges_ = 0;  // so far
  bool in_step_ = false;
};

RedisClient::RedisClient(RedisUrl url, RedisDeadline deadline)
    : url_(std::move(url)), deadline_(deadline) {}

RedisClient::~RedisClient() = default;

Result<std::unique_ptr<RedisReply>> RedisClient::RunOne(const Command& command) {
  PS_ASSIGN_OR_RETURN(Replies replies, Run(std::vector<Command>{command}));
  return std::move(replies.front());
}

Result<RedisClient::Replies> RedisClient::Run(const std::vector<Command>& commands) {
  bool sent = false;
  PS_ASSIGN_OR_RETURN(Answer answer, Ask(commands, &sent));
  for (const auto& reply : answer.replies) PS_RETURN_IF_ERROR(ErrorOf(*reply));
  return std::move(answer.replies);
}

Status RedisClient::ErrorOf(const RedisReply& reply) {
  if (reply.kind != RedisReply::Kind::kError) return Status();
  const bool full = reply.text.starts_with("OOM");
  Status failed =
      Failed(full ? "its memory is full" : "an error in reply to a command", reply.text);
  if (!full) return failed;
  return ResourceExhausted(failed.message()).WithReason(Reason::kStateStoreFull);
}

Result<RedisClient::Answer> RedisClient::Ask(const std::vector<Command>& commands, bool* sent) {
  std::string bytes = Encoded(commands);
  Timer timer(deadline_);
  if (std::unique_ptr<Connection> connection = TakeIdle(); connection != nullptr) {
    Result<Replies> replies = connection->Exchange(&bytes, commands.size(), &timer, sent);
    RunningWork::Moved();
    if (replies.ok()) {
      KeepIdle(std::move(connection));
      return Answer{*std::move(replies)};
    }
    // A server that restarts closes all connections.
    {
      std::lock_guard lock(mutex_);
      idle_.clear();
    }
    if (timer.left().count() == 0) return replies.status();
  }
  const bool resent = *sent;
  PS_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection, Connect(&timer));
  Result<Replies> replies = connection->Exchange(&bytes, commands.size(), &timer, sent);
  RunningWork::Moved();
  if (!replies.ok()) return replies.status();
  KeepIdle(std::move(connection));
  return Answer{*std::move(replies), resent};
}

Result<std::unique_ptr<RedisClient::Connection>> RedisClient::Connect(Timer* timer) {
  const int64_t left = std::max<int64_t>(1, timer->left().count());
  const timeval timeout = {left / 1000, left % 1000 * 1000};
  redisContext* const context = redisConnectWithTimeout(url_.host.c_str(), url_.port, timeout);
  if (context == nullptr) return Failed("it cannot be reached", "out of memory");
  auto connection = std::make_unique<Connection>(context);
  if (context->err != 0) return Failed("it cannot be reached", context->errstr);
  PS_RETURN_IF_ERROR(Greet(connection.get(), timer));
  return connection;
}

Status RedisClient::Greet(Connection* connection, Timer* timer) {
  std::vector<Command> commands;
  std::string password;
  if (!url_.password_file.empty()) {
    std::ifstream file(url_.password_file, std::ios::binary);
    if (!std::getline(file, password) || password.empty()) {
      return Failed("its password file cannot be read", url_.password_file);
    }
    commands.push_back(url_.user.empty() ? Command{"AUTH", password}
                                         : Command{"AUTH", url_.user, password});
  }
  const std::string database = std::to_string(url_.database);
  if (url_.database != 0) commands.push_back({"SELECT", database});
  if (commands.empty()) return Status();
  bool sent = false;
  std::string bytes = Encoded(commands);
  PS_ASSIGN_OR_RETURN(const Replies replies,
                      connection->Exchange(&bytes, commands.size(), timer, &sent));
  for (const auto& reply : replies) PS_RETURN_IF_ERROR(ErrorOf(*reply));
  return Status();
}

std::unique_ptr<RedisClient::Connection> RedisClient::TakeIdle() {
  std::lock_guard lock(mutex_);
  while (!idle_.empty()) {
    std::unique_ptr<Connection> connection = std::move(idle_.back());
    idle_.pop_back();
    if (connection->IsInStep()) return connection;
  }
  return nullptr;
}

void RedisClient::KeepIdle(std::unique_ptr<Connection> connection) {
  std::lock_guard lock(mutex_);
  idle_.push_back(std::move(connection));
}

}  // namespace polysketch
