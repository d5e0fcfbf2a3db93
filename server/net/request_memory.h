// One budget for the memory that clients make the server hold, over all connections and protocols:
// parts of messages, uploads, requests and replies. Work that does not fit is refused with
// RESOURCE_EXHAUSTED, before the memory is allocated.
//
// The bytes are shared among principals as Shares::Fits says: one alone gets three quarters of the
// budget.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/shares.h"
#include "base/status.h"

namespace polysketch {

// What the memory of a request is used for, in the order of a call's life.
enum class RequestPhase {
  kMessage,  // bytes of a message that has not arrived whole
  kUpload,   // messages that were collected before a request can start
  kRequest,  // a request: its prompt, in the queue or running
  kReply,    // messages that the client has not read
};
inline constexpr std::array<std::string_view, 4> kRequestPhaseNames = {"message", "upload",
                                                                       "request", "reply"};

// Thread-safe.
class RequestMemory {
 public:
  // `limit`: bytes, 0 or more.
  explicit RequestMemory(int64_t limit) : limit_(limit) {}
  RequestMemory(const RequestMemory&) = delete;
  RequestMemory& operator=(const RequestMemory&) = delete;

  // Counts `bytes`, 0 or more, of `principal`.
  // Returns false, and counts a refusal instead, if they do not fit, or if the process may have no
  // more memory (base/memory_limit.h).
  bool TryAdd(RequestPhase phase, const Principal& principal, int64_t bytes);
  // Takes back what TryAdd has counted.
  void Subtract(RequestPhase phase, const Principal& principal, int64_t bytes);
  // Counts bytes of one phase for another.
  void Move(RequestPhase from, RequestPhase to, int64_t bytes);
  // Whether at least `least` bytes were given back and not taken again since this was last true:
  // the allocator may keep them.
  bool TakeFreed(int64_t least);
  int64_t limit() const { return limit_; }
  // Bytes that a client holds at most, if no other holds any.
  int64_t client_limit() const { return Shares::Alone(limit_); }
  // RESOURCE_EXHAUSTED, for `bytes` that TryAdd has refused.
  Status Refusal(int64_t bytes) const;

  struct Stats {
    int64_t limit = 0;
    std::array<int64_t, 4> bytes{};     // by RequestPhase
    std::array<uint64_t, 4> refused{};  // by RequestPhase: TryAdd that returned false
  };
  Stats stats() const;

 private:
  const int64_t limit_;
  mutable std::mutex mutex_;  // guards everything below
  int64_t freed_ = 0;         // TakeFreed
  Stats stats_;               // all but the limit
  Shares held_;
};

// Bytes of one holder; its destructor takes them back. Used by one thread at a time.
class HeldMemory {
 public:
  HeldMemory() = default;
  HeldMemory(RequestMemory* memory, RequestPhase phase, Principal principal)
      : memory_(memory), phase_(phase), principal_(std::move(principal)) {}
  ~HeldMemory() { Release(); }
  HeldMemory(HeldMemory&& other) noexcept { *this = std::move(other); }
  HeldMemory& operator=(HeldMemory&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(phase_, other.phase_);
    std::swap(principal_, other.principal_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  // Adds `bytes` to what is held. Returns false, and holds what it held, if they do not fit.
  bool TryAdd(int64_t bytes) {
    if (memory_ == nullptr) return true;
    if (!memory_->TryAdd(phase_, principal_, bytes)) return false;
    bytes_ += bytes;
    return true;
  }
  // As TryAdd. RESOURCE_EXHAUSTED says the limit, all that the holder would hold, and what to do.
  Status Hold(int64_t bytes) { return TryAdd(bytes) ? Status() : memory_->Refusal(bytes_ + bytes); }
  // Holds `bytes` in place of what is held. After an error it holds what it held.
  Status HoldOnly(int64_t bytes) {
    if (bytes > bytes_) return Hold(bytes - bytes_);
    if (memory_ != nullptr) memory_->Subtract(phase_, principal_, bytes_ - bytes);
    bytes_ = memory_ == nullptr ? 0 : bytes;
    return Status();
  }
  // Counts what is held for another phase from now on.
  void SetPhase(RequestPhase phase) {
    if (memory_ != nullptr) memory_->Move(phase_, phase, bytes_);
    phase_ = phase;
  }
  void Release() {
    if (memory_ != nullptr) memory_->Subtract(phase_, principal_, std::exchange(bytes_, 0));
  }
  int64_t bytes() const { return bytes_; }
  // Null if nothing is counted.
  const RequestMemory* budget() const { return memory_; }

 private:
  RequestMemory* memory_ = nullptr;  // null: counts nothing
  RequestPhase phase_ = RequestPhase::kMessage;
  Principal principal_;
  int64_t bytes_ = 0;
};

}  // namespace polysketch
