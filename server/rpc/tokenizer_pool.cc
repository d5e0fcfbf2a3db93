#include "server/rpc/tokenizer_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/start_thread.h"
#include "engine/tokenizer/encode_pace.h"

namespace polysketch {

using SteadyClock = std::chrono::steady_clock;

struct TokenizerPool::Work {
  std::function<void()> run;  // null once it has started or was dropped
  bool posted = false;        // in a deque of its queue
  int64_t bytes = 0;
  int64_t charged = 0;  // of bytes
  bool large = false;
  std::atomic<bool> dropped = false;
  Principal principal;
  Queue* queue = nullptr;  // nodes of a map stay where they are
};

struct TokenizerPool::Worker {
  std::thread thread;
  std::condition_variable wake;
  Ticket work;                    // null: idle
  bool turn = false;              // may run
  bool overdue = false;           // runs beside the turn of another worker
  SteadyClock::time_point since;  // of the turn
};

class TokenizerPool::Pace final : public EncodePace {
 public:
  Pace(TokenizerPool* pool, Worker* worker) : pool_(pool), worker_(worker) { OfThread() = this; }
  ~Pace() override { OfThread() = nullptr; }
  bool Continue(size_t bytes) override {
    return pool_->Continue(worker_, static_cast<int64_t>(bytes));
  }

 private:
  TokenizerPool* const pool_;
  Worker* const worker_;
};

TokenizerPool::TokenizerPool(int threads, std::chrono::milliseconds turn) : turn_(turn) {
  PS_CHECK(threads >= 2) << threads;
  for (int i = 0; i < threads; ++i) workers_.push_back(std::make_unique<Worker>());
  for (const auto& worker : workers_)
    worker->thread = StartThread([this, w = worker.get()] { Loop(w); });
}

TokenizerPool::~TokenizerPool() { Stop(); }

TokenizerPool::Ticket TokenizerPool::Post(const Principal& principal, int64_t bytes,
                                          std::function<void()> work) {
  const auto ticket = std::make_shared<Work>();
  ticket->bytes = bytes;
  ticket->large = bytes > kSmallBytes;
  ticket->principal = principal;
  std::lock_guard lock(mutex_);
  if (stop_) return ticket;
  Queue* const queue = &queues_[principal];
  ticket->run = std::move(work);
  ticket->posted = true;
  ticket->queue = queue;
  (ticket->large ? queue->large : queue->small).push_back(ticket);
  ++waiting_;
  Dispatch();
  return ticket;
}

void TokenizerPool::Drop(const Ticket& ticket) {
  if (ticket == nullptr) return;
  ticket->dropped.store(true);
  std::function<void()> run;  // destroyed without the lock: its destructor may post or drop
  std::lock_guard lock(mutex_);
  if (!std::exchange(ticket->posted, false)) return;
  run.swap(ticket->run);
  std::deque<Ticket>& posted = ticket->large ? ticket->queue->large : ticket->queue->small;
  std::erase(posted, ticket);
  --waiting_;
  Forget(ticket.get());
}

void TokenizerPool::Stop() {
  std::vector<std::function<void()>> dropped;  // destroyed without the lock
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    for (auto& [principal, queue] : queues_) {
      for (std::deque<Ticket>* posted : {&queue.small, &queue.large}) {
        waiting_ -= static_cast<int64_t>(posted->size());
        for (const Ticket& ticket : *posted) {
          ticket->posted = false;
          dropped.push_back(std::exchange(ticket->run, nullptr));
        }
        posted->clear();
      }
    }
    for (const auto& worker : workers_) {
      if (worker->work != nullptr) worker->work->dropped.store(true);
      worker->wake.notify_one();
    }
  }
  for (const auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
}

void TokenizerPool::Loop(Worker* worker) {
  Pace pace(this, worker);
  std::unique_lock lock(mutex_);
  while (true) {
    AwaitTurn(worker, &lock);
    if (worker->work == nullptr) return;  // Stop
    {
      const std::function<void()> run = std::exchange(worker->work->run, nullptr);
      lock.unlock();
      run();
    }  // `run` is destroyed without the lock
    lock.lock();
    Finish(worker);
    Dispatch();
  }
}

void TokenizerPool::AwaitTurn(Worker* worker, std::unique_lock<std::mutex>* lock) {
  while (!worker->turn && !(stop_ && worker->work == nullptr)) {
    if (waiting_ == 0 || stop_) {
      worker->wake.wait(*lock);
    } else {
      ++watchers_;
      worker->wake.wait_for(*lock, turn_);
      --watchers_;
      TakeOverdueTurns();
    }
  }
}

void TokenizerPool::TakeOverdueTurns() {
  const auto limit = SteadyClock::now() - turn_;
  for (const auto& worker : workers_) {
    if (!worker->turn || worker->overdue || worker->since > limit) continue;
    worker->overdue = true;
    --turns_;
  }
  Dispatch();
}

bool TokenizerPool::Continue(Worker* worker, int64_t bytes) {
  std::unique_lock lock(mutex_);
  Work* const work = worker->work.get();
  work->charged += bytes;
  times_.Charge(work->principal, bytes);
  if (work->dropped.load()) return false;
  // Small work ends soon. Large work waits for its next turn, unless no other work waits.
  if (!work->large || waiting_ == 0) {
    worker->since = SteadyClock::now();
    return true;
  }
  EndTurn(worker);
  work->queue->paused = worker;
  ++waiting_;
  Dispatch();
  AwaitTurn(worker, &lock);
  return !work->dropped.load();
}

WorkProgress TokenizerPool::progress() {
  const std::lock_guard lock(mutex_);
  WorkProgress progress{.has_work = !queues_.empty(), .done = turns_ended_};
  for (const auto& worker : workers_) {
    if (worker->turn) progress.AddRunning(worker->since);
  }
  return progress;
}

void TokenizerPool::EndTurn(Worker* worker) {
  ++turns_ended_;
  worker->turn = false;
  if (!std::exchange(worker->overdue, false)) --turns_;
}

void TokenizerPool::Finish(Worker* worker) {
  EndTurn(worker);
  const Ticket work = std::exchange(worker->work, nullptr);
  times_.Charge(work->principal, work->bytes - work->charged);
  --work->queue->started;
  if (work->large) {
    --work->queue->large_started;
    large_started_.Remove(work->principal, 1);
  }
  Forget(work.get());
}

void TokenizerPool::Forget(Work* work) {
  const Queue& queue = *std::exchange(work->queue, nullptr);
  if (queue.started == 0 && queue.small.empty() && queue.large.empty())
    queues_.erase(work->principal);
}

TokenizerPool::Worker* TokenizerPool::IdleWorker() const {
  for (const auto& worker : workers_) {
    if (worker->work == nullptr) return worker.get();
  }
  return nullptr;
}

// Every principal has the chance to start: one that has started large work leaves a thread for
// others, and large work of all leaves a thread for small work.
bool TokenizerPool::MayStartLarge(const Principal& principal, const Queue& queue) const {
  const bool started = large_started_.Of(principal).principal > 0;
  const int64_t most = std::ssize(workers_) - (started ? 2 : 1);
  return queue.large_started == 0 && large_started_.total() < std::max<int64_t>(most, 1);
}

// Whether the queue can use a turn.
bool TokenizerPool::HasTurn(const Principal& principal, const Queue& queue, bool idle) const {
  if (queue.paused != nullptr) return true;
  if (!idle) return false;
  return !queue.small.empty() || (!queue.large.empty() && MayStartLarge(principal, queue));
}

void TokenizerPool::Dispatch() {
  while (turns_ == 0 && waiting_ > 0) {
    Worker* const idle = IdleWorker();
    std::pair<const Principal, Queue>* next = nullptr;
    for (auto& named : queues_) {
      if (!HasTurn(named.first, named.second, idle != nullptr)) continue;
      if (next == nullptr || times_.Of(named.first) < times_.Of(next->first)) next = &named;
    }
    if (next == nullptr) return;
    GiveTurn(next->first, &next->second, idle);
  }
  if (waiting_ == 0 || watchers_ > 0) return;
  // An idle thread watches for a turn that is overdue.
  if (Worker* const idle = IdleWorker()) idle->wake.notify_one();
}

void TokenizerPool::GiveTurn(const Principal& principal, Queue* queue, Worker* idle) {
  times_.AdvanceTo(queues_, [](const auto& named) -> const Principal& { return named.first; });
  const bool large = queue->paused != nullptr ||
                     (idle != nullptr && !queue->large.empty() && MayStartLarge(principal, *queue));
  const bool small = idle != nullptr && !queue->small.empty() && !(large && queue->small_last);
  queue->small_last = small;
  if (!small && queue->paused != nullptr) {
    idle = std::exchange(queue->paused, nullptr);  // continues
  } else {
    Start(principal, queue, small ? &queue->small : &queue->large, idle);
  }
  --waiting_;
  ++turns_;
  idle->turn = true;
  idle->since = SteadyClock::now();
  idle->wake.notify_one();
}

void TokenizerPool::Start(const Principal& principal, Queue* queue, std::deque<Ticket>* from,
                          Worker* worker) {
  worker->work = std::move(from->front());
  from->pop_front();
  worker->work->posted = false;
  ++queue->started;
  if (!worker->work->large) return;
  ++queue->large_started;
  large_started_.Add(principal, 1);
}

}  // namespace polysketch
