#include "server/rpc/executor.h"

#include <algorithm>
#include <utility>

#include "base/fair_share.h"

namespace polysketch {

Executor::Executor(int threads, Threads of_owner) : count_(threads), of_owner_(of_owner) {
  for (int i = 0; i < threads; ++i) work_of_threads_.push_back(std::make_unique<RunningWork>());
  for (const auto& running : work_of_threads_)
    threads_.emplace_back([this, work = running.get()] { Loop(work); });
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

void Executor::Add(Work work, const std::string& name) {
  const Owners::iterator owner = owners_.try_emplace(name).first;
  if (owner->second.work.empty()) turns_.push_back(owner);
  owner->second.work.push_back(std::move(work));
}

bool Executor::MayStart(const Owner& owner) const {
  if (of_owner_ == Threads::kAny || owner.running == 0 || stop_) return true;
  return IsFairShare(owner.running + 1, count_ - running_ - 1);
}

// The owners that may not start run work: they are fewer than the threads.
std::deque<Executor::Owners::iterator>::iterator Executor::NextTurn() {
  return std::find_if(turns_.begin(), turns_.end(),
                      [this](Owners::iterator owner) { return MayStart(owner->second); });
}

Executor::Work Executor::Take(Owners::iterator owner) {
  Work work = std::move(owner->second.work.front());
  owner->second.work.pop_front();
  if (!owner->second.work.empty()) turns_.push_back(owner);
  ++owner->second.running;
  ++running_;
  return work;
}

void Executor::Finish(Owners::iterator owner) {
  --running_;
  ++done_;
  if (--owner->second.running == 0 && owner->second.work.empty()) owners_.erase(owner);
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
    if (turns_.empty()) return;
  }
  wake_.notify_all();
}

WorkProgress Executor::progress() {
  std::lock_guard lock(mutex_);
  WorkProgress progress{.has_work = running_ > 0 || !turns_.empty(), .done = done_};
  for (const auto& work : work_of_threads_) progress.AddRunning(work->since());
  return progress;
}

void Executor::Loop(RunningWork* running) {
  RunningWork::OfThread() = running;
  std::unique_lock lock(mutex_);
  while (true) {
    while (!later_.empty() && later_.begin()->first <= SteadyClock::now()) {
      Add(std::move(later_.extract(later_.begin()).mapped()), "");
    }
    if (const auto turn = NextTurn(); turn != turns_.end()) {
      const Owners::iterator owner = *turn;
      turns_.erase(turn);
      {
        const Work work = Take(owner);
        // The piece that ended may have let the work of two owners start.
        if (of_owner_ == Threads::kShares && !held_ && NextTurn() != turns_.end())
          wake_.notify_one();
        running->Start();
        lock.unlock();
        work();
      }  // `work` is destroyed without the lock: its destructors may post again
      running->End();
      lock.lock();
      Finish(owner);
    } else if (stop_ && turns_.empty()) {
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
