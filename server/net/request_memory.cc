#include "server/net/request_memory.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/memory_limit.h"

namespace polysketch {

bool RequestMemory::TryAdd(RequestPhase phase, const Principal& principal, int64_t bytes) {
  if (bytes == 0) return true;
  const bool fits = MemoryFits(static_cast<size_t>(bytes));
  const std::lock_guard lock(mutex_);
  if (!fits || !held_.Fits(principal, bytes, limit_ - held_.total())) {
    ++stats_.refused[static_cast<size_t>(phase)];
    return false;
  }
  freed_ = std::max<int64_t>(freed_ - bytes, 0);
  stats_.bytes[static_cast<size_t>(phase)] += bytes;
  held_.Add(principal, bytes);
  return true;
}

void RequestMemory::Subtract(RequestPhase phase, const Principal& principal, int64_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  freed_ += bytes;
  stats_.bytes[static_cast<size_t>(phase)] -= bytes;
  PS_CHECK(held_.Of(principal).part >= bytes) << principal.name << " " << bytes;
  held_.Remove(principal, bytes);
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
