// A client of one Redis server: commands in pipelines, connections that are kept, a deadline.
//
// Every pipeline ends with a PING that names its number on the connection, and a connection is kept
// only if exactly the replies to the commands and to this PING have arrived. So a reply that no
// command asked for, late ones included, ends the connection, and is never taken for another one.
//
// Clients read the errors, which quote nothing of the server and name no host; the log has its
// words.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/store/redis_reply.h"
#include "engine/store/redis_url.h"

namespace polysketch {

// How long the exchange of a pipeline may take, the connection included: `wait`, and the time that
// the bytes which have moved take at `bytes_per_second`. So a large value may take its time, and a
// server that sends a byte now and then may not.
struct RedisDeadline {
  std::chrono::milliseconds wait{10'000};
  int64_t bytes_per_second = 10 << 20;
};

// Thread-safe: every call has a connection of its own while it runs. As many connections exist as
// calls have run at once.
class RedisClient {
 public:
  using Command = std::vector<std::string_view>;
  using Replies = std::vector<std::unique_ptr<RedisReply>>;

  explicit RedisClient(RedisUrl url, RedisDeadline deadline = {});
  ~RedisClient();

  struct Answer {
    Replies replies;      // one for each command; error replies too
    bool resent = false;  // the commands have perhaps run twice
  };
  // Sends all commands at once and returns a reply to each. Commands that met a broken connection
  // are sent again, once: they must be commands that may run twice. UNAVAILABLE for a server that
  // cannot be reached, does not answer in time or does not speak the protocol; `*sent` then tells
  // whether the commands have perhaps run.
  Result<Answer> Ask(const std::vector<Command>& commands, bool* sent);
  // The error of an error reply: RESOURCE_EXHAUSTED if the memory of the server is full, else
  // UNAVAILABLE. OK for another reply.
  static Status ErrorOf(const RedisReply& reply);
  // As Ask, for commands that change nothing of importance: an error reply fails the call.
  Result<Replies> Run(const std::vector<Command>& commands);
  // One command.
  Result<std::unique_ptr<RedisReply>> RunOne(const Command& command);

 private:
  class Connection;
  class Timer;

  Result<std::unique_ptr<Connection>> Connect(Timer* timer);
  Status Greet(Connection* connection, Timer* timer);
  std::unique_ptr<Connection> TakeIdle();
  void KeepIdle(std::unique_ptr<Connection> connection);

  const RedisUrl url_;
  const RedisDeadline deadline_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_;  // guarded by mutex_
};

}  // namespace polysketch
