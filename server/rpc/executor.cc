#include "server/rpc/executor.h"

#include <algorithm>
#include <utility>

#include "base/start_thread.h"

namespace polysketch {

Executor::Executor(int threads, Threads of_principal)
    : count_(threads), of_principal_(of_principal) {
  for (int i = 0; i < threads; ++i) work_of_threads_.push_back(std::make_unique<RunningWork>());
  for (const auto& running : work_of_threads_)
    threads_.push_back(StartThread([this, work = running.get()] { Loop(work); }));
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

void Executor::Add(Work work, const Principal& principal) {
  const auto at = principals_.try_emplace(principal.name).first;
  Posted& posted = at->second;
  if (posted.turns.empty()) turns_.push_back(at);
  const auto part = posted.parts.try_emplace(principal.part).first;
  if (part->second.empty()) posted.turns.push_back(part);
  part->second.push_back(std::move(work));
}

bool Executor::MayStart(const Principal& principal) const {
  if (of_principal_ == Threads::kAny || stop_) return true;
  return running_of_.Fits(principal, 1, count_ - running_, /*first=*/true);
}

bool Executor::MayStartOne() const {
  return std::any_of(turns_.begin(), turns_.end(), [this](Principals::iterator at) {
    const auto& turns = at->second.turns;
    return std::any_of(turns.begin(), turns.end(), [&](auto part) {
      return MayStart({at->first, part->first});
    });
  });
}

std::optional<std::pair<Principal, Executor::Work>> Executor::Take() {
  for (auto turn = turns_.begin(); turn != turns_.end(); ++turn) {
    const Principals::iterator at = *turn;
    Posted& posted = at->second;
    const auto found = std::find_if(posted.turns.begin(), posted.turns.end(), [&](auto part) {
      return MayStart({at->first, part->first});
    });
    if (found == posted.turns.end()) continue;
    const auto part = *found;
    std::pair<Principal, Work> taken(Principal{at->first, part->first},
                                     std::move(part->second.front()));
    posted.turns.erase(found);
    turns_.erase(turn);
    part->second.pop_front();
    part->second.empty() ? void(posted.parts.erase(part)) : posted.turns.push_back(part);
    posted.turns.empty() ? void(principals_.erase(at)) : turns_.push_back(at);
    ++running_;
    if (of_principal_ == Threads::kShares) running_of_.Add(taken.first, 1);
    return taken;
  }
  return std::nullopt;
}

void Executor::Post(Work work, const Principal& principal) {
  {
    std::lock_guard lock(mutex_);
    if (stop_) return;
    Add(std::move(work), principal);
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
      Add(std::move(later_.extract(later_.begin()).mapped()), {});
    }
    if (std::optional<std::pair<Principal, Work>> taken = Take()) {
      // The piece that ended may have let the work of two principals start.
      if (of_principal_ == Threads::kShares && !held_ && MayStartOne()) wake_.notify_one();
      running->Start();
      lock.unlock();
      taken->second();
      taken->second = nullptr;  // destroyed without the lock: its destructors may post again
      running->End();
      lock.lock();
      --running_;
      ++done_;
      if (of_principal_ == Threads::kShares) running_of_.Remove(taken->first, 1);
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
