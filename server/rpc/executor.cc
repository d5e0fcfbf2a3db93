#include "server/rpc/executor.h"

#include <utility>

namespace polysketch {

Executor::Executor(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
}

void Executor::Stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Executor::Post(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    if (stop_) return;
    work_.push_back(std::move(work));
    if (held_) return;
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

void Executor::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !work_.empty(); });
    if (work_.empty()) return;
    {
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      work();
    }  // what it held is released without the lock: it may post again
    lock.lock();
  }
}

}  // namespace polysketch
