#include "server/rpc/stall_watch.h"

#include <algorithm>
#include <utility>

namespace polysketch {

StallWatch::StallWatch(std::chrono::milliseconds deadline)
    : deadline_(deadline), thread_([this] { Loop(); }) {}

StallWatch::~StallWatch() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void StallWatch::Add(std::weak_ptr<Stallable> call) {
  std::lock_guard lock(mutex_);
  calls_.push_back(std::move(call));
}

void StallWatch::Loop() {
  const auto period = std::max(deadline_ / 8, std::chrono::milliseconds(10));
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, period, [this] { return stop_; })) {
    std::erase_if(calls_, [](const auto& call) { return call.expired(); });
    const std::vector<std::weak_ptr<Stallable>> calls = calls_;
    lock.unlock();
    const auto since = std::chrono::steady_clock::now() - deadline_;
    for (const auto& weak : calls) {
      if (const auto call = weak.lock()) call->EndIfStalled(since);
    }
    lock.lock();
  }
}

}  // namespace polysketch
