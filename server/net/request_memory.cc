#include "server/net/request_memory.h"

namespace polysketch {

bool RequestMemory::TryAdd(RequestPhase phase, int64_t bytes) {
  const auto index = static_cast<size_t>(phase);
  int64_t total = total_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit_ - total) {
      refused_[index].fetch_add(1, std::memory_order_relaxed);
      return false;
    }
  } while (!total_.compare_exchange_weak(total, total + bytes, std::memory_order_relaxed));
  bytes_[index].fetch_add(bytes, std::memory_order_relaxed);
  return true;
}

void RequestMemory::Subtract(RequestPhase phase, int64_t bytes) {
  bytes_[static_cast<size_t>(phase)].fetch_sub(bytes, std::memory_order_relaxed);
  total_.fetch_sub(bytes, std::memory_order_relaxed);
}

void RequestMemory::Move(RequestPhase from, RequestPhase to, int64_t bytes) {
  bytes_[static_cast<size_t>(from)].fetch_sub(bytes, std::memory_order_relaxed);
  bytes_[static_cast<size_t>(to)].fetch_add(bytes, std::memory_order_relaxed);
}

Status RequestMemory::Refusal(int64_t bytes) const {
  if (bytes > limit_) {
    return ResourceExhausted("request memory: expected at most ", limit_,
                             " bytes (--request-memory), found ", bytes, "; send less at once");
  }
  return ResourceExhausted("request memory: ", bytes, " bytes do not fit beside other requests (",
                           limit_, " bytes in all, --request-memory); try again later")
      .WithReason(Reason::kRequestMemoryFull)
      .WithRetryAfter(std::chrono::seconds(1));
}

RequestMemory::Stats RequestMemory::stats() const {
  Stats stats{.limit = limit_};
  for (size_t i = 0; i < bytes_.size(); ++i) {
    stats.bytes[i] = bytes_[i].load(std::memory_order_relaxed);
    stats.refused[i] = refused_[i].load(std::memory_order_relaxed);
  }
  return stats;
}

}  // namespace polysketch
