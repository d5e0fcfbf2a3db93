// Calls of several threads that are tried again while the server is full or away, and that end
// together.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <unordered_set>

#include "clients/cpp/rpc.h"

namespace polysketch {

class RetriedCalls {
 public:
  // A call with the context that it is given.
  using Attempt = std::function<grpc::Status(grpc::ClientContext*)>;

  // retries: of each call, beside its first attempt.
  explicit RetriedCalls(int32_t retries) : retries_(retries) {}
  RetriedCalls(const RetriedCalls&) = delete;
  RetriedCalls& operator=(const RetriedCalls&) = delete;

  // Calls `attempt` until its status is one that a retry cannot change: neither UNAVAILABLE nor one
  // that comes with a retry delay of the server. Waits before each retry. Returns the last status;
  // none: Stop or StopRetries was called. Thread-safe.
  std::optional<grpc::Status> Run(const CallOptions& options, const Attempt& attempt);
  // Calls under way end as they may; Run starts no other attempt. Thread-safe.
  void StopRetries();
  // The same, and cancels the calls under way. Thread-safe.
  void Stop();

 private:
  // The status of one attempt; none: stopped before it began.
  std::optional<grpc::Status> Try(const CallOptions& options, const Attempt& attempt,
                                  std::optional<std::chrono::milliseconds>* retry_after);
  // False: stopped.
  bool Sleep(std::chrono::milliseconds delay);

  const int32_t retries_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::unordered_set<grpc::ClientContext*> calls_;
  bool stopped_ = false;
};

}  // namespace polysketch
