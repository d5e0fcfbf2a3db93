#include "clients/cpp/retried_calls.h"

#include <algorithm>

namespace polysketch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstDelay(500);
constexpr milliseconds kMaxDelay(30'000);

}  // namespace

std::optional<grpc::Status> RetriedCalls::Run(const CallOptions& options, const Attempt& attempt) {
  milliseconds delay = kFirstDelay;
  for (int32_t retries = 0; true; ++retries) {
    std::optional<milliseconds> retry_after;
    std::optional<grpc::Status> status = Try(options, attempt, &retry_after);
    if (!status || status->ok()) return status;
    // A full queue says when to try again.
    const bool again = retry_after || status->error_code() == grpc::StatusCode::UNAVAILABLE;
    if (!again || retries >= retries_) return status;
    if (!Sleep(retry_after.value_or(delay))) return std::nullopt;
    delay = std::min(2 * delay, kMaxDelay);
  }
}

std::optional<grpc::Status> RetriedCalls::Try(const CallOptions& options, const Attempt& attempt,
                                              std::optional<milliseconds>* retry_after) {
  grpc::ClientContext context;
  Prepare(options, &context);
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return std::nullopt;
    calls_.insert(&context);
  }
  grpc::Status status = attempt(&context);
  const std::lock_guard lock(mutex_);
  calls_.erase(&context);
  if (stopped_ && !status.ok()) return std::nullopt;
  if (const auto delay_ms = RetryDelay(context); delay_ms && !status.ok())
    *retry_after = milliseconds(*delay_ms);
  return status;
}

bool RetriedCalls::Sleep(milliseconds delay) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, delay, [this] { return stopped_; });
}

void RetriedCalls::StopRetries() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

void RetriedCalls::Stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  for (grpc::ClientContext* call : calls_) call->TryCancel();
  changed_.notify_all();
}

}  // namespace polysketch
