#include "server/rpc/executor.h"

#include <utility>

namespace polysketch {

Executor::Executor(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
}

void Executor::Stop() {
  decltype(later_) dropped;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    dropped.swap(later_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Executor::Add(Work work, const std::string& owner) {
  const auto [queue, added] = work_.try_emplace(owner);
  queue->second.push_back(std::move(work));
  if (added) turns_.push_back(queue);
}

Executor::Work Executor::Take() {
  const Queues::iterator queue = turns_.front();
  turns_.pop_front();
  Work work = std::move(queue->second.front());
  queue->second.pop_front();
  if (queue->second.empty()) {
    work_.erase(queue);
  } else {
    turns_.push_back(queue);
  }
  return work;
}

void Executor::Post(Work work, const std::string& owner) {
  {
    std::lock_guard lock(mutex_);
    if (stop_) return;
    Add(std::move(work), owner);
    if (held_) return;
  }
  wake_.notify_one();
}

void Executor::PostAfter(std::chrono::milliseconds delay, std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    if (stop_) return;
    const auto added = later_.emplace(SteadyClock::now() + delay, std::move(work));
    if (added != later_.begin()) return;  // a thread wakes before this work is due
  }
  wake_.notify_one();
}

void Executor::Hold() {
  std::lock_guard lock(mutex_);
  held_ = true;
}

void Executor::Release() {
  {
    std::lock_guard lock(mutex_);
    held_ = false;
    if (work_.empty()) return;
  }
  wake_.notify_all();
}

WorkProgress Executor::progress() {
  std::lock_guard lock(mutex_);
  return {.has_work = running_ > 0 || !work_.empty(), .done = done_};
}

void Executor::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    while (!later_.empty() && later_.begin()->first <= SteadyClock::now()) {
      Add(std::move(later_.extract(later_.begin()).mapped()), "");
    }
    if (!work_.empty()) {
      {
        const Work work = Take();
        ++running_;
        lock.unlock();
        work();
      }  // `work` is destroyed without the lock: its destructors may post again
      lock.lock();
      --running_;
      ++done_;
    } else if (stop_) {
      return;
    } else if (later_.empty()) {
      wake_.wait(lock);
    } else {
      const SteadyClock::time_point due = later_.begin()->first;  // Stop clears later_
      wake_.wait_until(lock, due);
    }
  }
}

}  // namespace polysketch
