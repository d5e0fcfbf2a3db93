#include "server/net/request_memory.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/fair_share.h"
#include "server/credentials/guard.h"
#include "server/net/connections.h"

namespace polysketch {

std::string MemoryClient(const Caller* caller, std::string_view peer) {
  if (caller != nullptr && !caller->key().tenant.empty())
    return StrCat("tenant ", caller->key().tenant);
  return PeerOf(ConnectionKey(peer));
}

bool RequestMemory::TryAdd(RequestPhase phase, const std::string& client, int64_t bytes) {
  if (bytes == 0) return true;
  const std::lock_guard lock(mutex_);
  const auto found = clients_.find(client);
  const int64_t held = found == clients_.end() ? 0 : found->second;
  const int64_t free = limit_ - total_;
  // In this order no sum overflows.
  if (bytes > free || !IsFairShare(held + bytes, free - bytes)) {
    ++stats_.refused[static_cast<size_t>(phase)];
    return false;
  }
  total_ += bytes;
  freed_ = std::max<int64_t>(freed_ - bytes, 0);
  stats_.bytes[static_cast<size_t>(phase)] += bytes;
  found == clients_.end() ? void(clients_.emplace(client, bytes)) : void(found->second += bytes);
  return true;
}

void RequestMemory::Subtract(RequestPhase phase, const std::string& client, int64_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  total_ -= bytes;
  freed_ += bytes;
  stats_.bytes[static_cast<size_t>(phase)] -= bytes;
  const auto found = clients_.find(client);
  PS_CHECK(found != clients_.end() && found->second >= bytes) << client << " " << bytes;
  found->second -= bytes;
  if (found->second == 0) clients_.erase(found);
}

bool RequestMemory::TakeFreed(int64_t least) {
  const std::lock_guard lock(mutex_);
  if (freed_ < least) return false;
  freed_ = 0;
  return true;
}

void RequestMemory::Move(RequestPhase from, RequestPhase to, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  stats_.bytes[static_cast<size_t>(from)] -= bytes;
  stats_.bytes[static_cast<size_t>(to)] += bytes;
}

Status RequestMemory::Refusal(int64_t bytes) const {
  if (bytes > client_limit()) {
    return ResourceExhausted("request memory: expected at most ", client_limit(),
                             " bytes of a client (of --request-memory ", limit_, "), found ", bytes,
                             "; send less at once");
  }
  return ResourceExhausted("request memory: ", bytes, " bytes do not fit beside other requests (",
                           limit_,
                           " bytes in all, --request-memory, of which a client may hold "
                           "three times what is free); try again later")
      .WithReason(Reason::kRequestMemoryFull)
      .WithRetryAfter(std::chrono::seconds(1));
}

RequestMemory::Stats RequestMemory::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  stats.limit = limit_;
  return stats;
}

}  // namespace polysketch
