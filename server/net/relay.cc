#include "server/net/relay.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/log_limit.h"
#include "base/logging.h"
#include "base/shares.h"
#include "base/start_thread.h"
#include "server/net/relayed_connection.h"

namespace polysketch {
namespace {

constexpr uint64_t kWakeEvent = ~uint64_t{0};
// Bytes that gRPC may hold for a byte of a message: two messages share a buffer, and the buffer
// stays until both are freed.
constexpr int64_t kHeldPerByte = 2;
// Between two checks whether the last bytes of connections have arrived.
constexpr std::chrono::milliseconds kLingerPeriod{10};

// A deadline is noticed at most an eighth of it late, and at most a second.
std::chrono::milliseconds CheckPeriod(const RelayOptions& options) {
  using std::chrono::milliseconds;
  const milliseconds least = std::min(options.handshake_timeout, options.frames.stall_deadline);
  return std::clamp(least / 8, milliseconds(10), milliseconds(1000));
}

}  // namespace

Relay::Relay(const RelayOptions& options, ConnectionTable* table, RequestMemory* memory,
             std::function<void(int)> serve)
    : options_(options),
      check_period_(CheckPeriod(options)),
      table_(table),
      memory_(memory),
      serve_(std::move(serve)),
      epoll_fd_(epoll_create1(EPOLL_CLOEXEC)),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  PS_CHECK(epoll_fd_ >= 0 && wake_fd_ >= 0) << std::strerror(errno);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakeEvent}};
  PS_CHECK(epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, wake_fd_, &event) == 0) << std::strerror(errno);
  thread_ = StartThread([this] { Loop(); });
}

Relay::~Relay() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  Wake();
  thread_.join();
  AddWaiting();
  for (const auto& [id, connection] : connections_) {
    connection->Close(Status());
    table_->Remove(id);
  }
  connections_.clear();
  close(wake_fd_);
  close(epoll_fd_);
}

void Relay::Add(int fd, const std::string& key) {
  const ConnectionTable::Id id = table_->Add(key, fd);
  if (id == 0) {
    static LogLimit limit("refused_connections_not_logged", 1);
    if (limit.Allow()) {
      LogWarning("connection_refused",
                 {{"peer", key}, {"reason", "too many connections, calls or abusive connections"}});
    }
    close(fd);
    return;
  }
  const auto certificates =
      options_.certificates == nullptr ? nullptr : options_.certificates->current();
  auto connection = std::make_unique<RelayedConnection>(
      id, key, fd, certificates == nullptr ? nullptr : certificates->http2_context.get(),
      options_.frames, this, &serve_);
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(connection));
  }
  Wake();
}

void Relay::Wake() {
  const uint64_t one = 1;
  PS_CHECK(write(wake_fd_, &one, sizeof(one)) == sizeof(one)) << std::strerror(errno);
}

void Relay::AddWaiting() {
  decltype(waiting_) added;
  {
    const std::lock_guard lock(mutex_);
    added.swap(waiting_);
  }
  for (auto& connection : added) {
    connection->Watch(epoll_fd_);
    connections_[connection->id()] = std::move(connection);
  }
}

void Relay::Loop() {
  epoll_event events[64];
  TimePoint checked{};
  while (true) {
    const int count = epoll_wait(epoll_fd_, events, std::size(events), Timeout());
    PS_CHECK(count >= 0 || errno == EINTR) << std::strerror(errno);
    const TimePoint now = std::chrono::steady_clock::now();
    bool handshake = false;  // one in a turn: a handshake takes longer than the bytes of many
    for (int i = 0; i < count; ++i) {
      const uint64_t data = events[i].data.u64;
      if (data == kWakeEvent) {
        uint64_t ignored;
        if (read(wake_fd_, &ignored, sizeof(ignored)) < 0) continue;
        AddWaiting();
        continue;
      }
      const auto found = connections_.find(data / 2);
      if (found == connections_.end()) continue;
      RelayedConnection& connection = *found->second;
      if (connection.needs_handshake() && std::exchange(handshake, true)) continue;
      if (data % 2 == 1) {
        connection.OnClient(events[i].events, now);
      } else {
        connection.OnServer(events[i].events, now);
      }
      if (connection.closed()) closed_.push_back(found->first);
      if (connection.lingers()) lingering_.insert(found->first);
    }
    CheckLingering(now);
    if (now - checked >= check_period_) {
      checked = now;
      CheckDeadlines(now);
    }
    Sweep();
    const std::lock_guard lock(mutex_);
    if (stop_) return;
  }
}

int Relay::Timeout() const {
  if (connections_.empty()) return -1;
  return static_cast<int>((lingering_.empty() ? check_period_ : kLingerPeriod).count());
}

void Relay::CheckLingering(TimePoint now) {
  std::erase_if(lingering_, [&](ConnectionTable::Id id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return true;
    found->second->CheckLinger(now);
    if (found->second->closed()) closed_.push_back(id);
    return found->second->closed();
  });
}

void Relay::CheckDeadlines(TimePoint now) {
  for (const auto& [id, connection] : connections_) {
    if (connection->started()) {
      connection->Apply(connection->filter().CheckDeadlines(now));
    } else if (now - connection->accepted() > options_.handshake_timeout) {
      connection->Close(Unavailable("expected the preface of HTTP/2 within --handshake-timeout"));
    }
    if (connection->closed()) closed_.push_back(id);
    if (connection->lingers()) lingering_.insert(id);
  }
}

void Relay::Sweep() {
  for (const ConnectionTable::Id id : std::exchange(closed_, {})) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    const RelayedConnection& connection = *found->second;
    const Status& reason = connection.reason();
    if (reason.code() == Code::kResourceExhausted) {
      table_->Close(connection.id(), reason.message());
    } else if (!reason.ok()) {
      Log(LogLevel::kDebug, "connection_closed",
          {{"peer", connection.key()}, {"reason", reason.message()}});
    }
    table_->Remove(id);
    connections_.erase(found);
  }
}

bool Relay::Charge(const FrameFilter& filter, int64_t bytes) {
  do {
    if (memory_->TryAdd(RequestPhase::kMessage, filter.principal(), kHeldPerByte * bytes))
      return true;
  } while (MakeRoom(filter.principal(), bytes));
  return false;
}

void Relay::Release(const FrameFilter& filter, int64_t bytes) {
  memory_->Subtract(RequestPhase::kMessage, filter.principal(), kHeldPerByte * bytes);
}

bool Relay::MakeRoom(const Principal& principal, int64_t bytes) {
  Shares held;
  for (const auto& [id, connection] : connections_)
    if (!connection->closed()) held.Add(connection->principal(), connection->filter().held());
  const auto rank = [&held](const RelayedConnection& connection) {
    return std::pair(held.Of(connection.principal()), connection.filter().held());
  };
  RelayedConnection* largest = nullptr;
  for (const auto& [id, connection] : connections_) {
    if (connection->closed() || !held.HoldsMore(connection->principal(), principal, bytes))
      continue;
    if (largest == nullptr || rank(*connection) > rank(*largest)) largest = connection.get();
  }
  if (largest == nullptr) return false;
  largest->Apply(largest->filter().ResetLargest());
  if (largest->closed()) closed_.push_back(largest->id());
  return true;
}

}  // namespace polysketch
