#include "server/rpc/tokenizer_pool.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
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
  // The owner; nodes of a map stay where they are.
  std::string group_name, queue_name;
  Group* group = nullptr;
  Queue* queue = nullptr;

  void Charge(int64_t more) {
    charged += more;
    group->served += more;
    queue->served += more;
  }
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
    worker->thread = std::thread([this, w = worker.get()] { Loop(w); });
}

TokenizerPool::~TokenizerPool() { Stop(); }

TokenizerPool::Ticket TokenizerPool::Post(const Owner& owner, int64_t bytes,
                                          std::function<void()> work) {
  const auto ticket = std::make_shared<Work>();
  ticket->bytes = bytes;
  ticket->large = bytes > kSmallBytes;
  ticket->group_name = owner.group;
  ticket->queue_name = owner.connection;
  std::lock_guard lock(mutex_);
  if (stop_) return ticket;
  const auto [group, new_group] = groups_.try_emplace(owner.group);
  if (new_group) group->second.served = last_group_;
  const auto [queue, new_queue] = group->second.queues.try_emplace(owner.connection);
  if (new_queue) queue->second.served = group->second.last_queue;
  ticket->run = std::move(work);
  ticket->posted = true;
  ticket->group = &group->second;
  ticket->queue = &queue->second;
  (ticket->large ? queue->second.large : queue->second.small).push_back(ticket);
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
    for (auto& [group_name, group] : groups_) {
      for (auto& [queue_name, queue] : group.queues) {
        for (std::deque<Ticket>* posted : {&queue.small, &queue.large}) {
          waiting_ -= static_cast<int64_t>(posted->size());
          for (const Ticket& ticket : *posted) {
            ticket->posted = false;
            dropped.push_back(std::exchange(ticket->run, nullptr));
          }
          posted->clear();
        }
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
  work->Charge(bytes);
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
  WorkProgress progress{.has_work = !groups_.empty(), .done = turns_ended_};
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
  work->Charge(std::max<int64_t>(work->bytes - work->charged, 0));
  --work->queue->started;
  if (work->large) {
    --work->queue->large_started;
    --work->group->large_started;
    --large_started_;
  }
  Forget(work.get());
}

void TokenizerPool::Forget(Work* work) {
  const Queue& queue = *std::exchange(work->queue, nullptr);
  Group& group = *std::exchange(work->group, nullptr);
  if (queue.started > 0 || !queue.small.empty() || !queue.large.empty()) return;
  group.queues.erase(work->queue_name);
  if (group.queues.empty()) groups_.erase(work->group_name);
}

TokenizerPool::Worker* TokenizerPool::IdleWorker() const {
  for (const auto& worker : workers_) {
    if (worker->work == nullptr) return worker.get();
  }
  return nullptr;
}

// Every group has the chance to start: one that has started large work leaves a thread for others,
// and large work of all groups leaves a thread for small work.
bool TokenizerPool::MayStartLarge(const Group& group, const Queue& queue) const {
  const int most = static_cast<int>(workers_.size()) - (group.large_started > 0 ? 2 : 1);
  return queue.large_started == 0 && large_started_ < std::max(most, 1);
}

// Whether the queue can use a turn.
bool TokenizerPool::HasTurn(const Group& group, Queue* queue, bool idle) const {
  if (queue->paused != nullptr) return true;
  if (!idle) return false;
  return !queue->small.empty() || (!queue->large.empty() && MayStartLarge(group, *queue));
}

void TokenizerPool::Dispatch() {
  while (turns_ == 0 && waiting_ > 0) {
    Worker* const idle = IdleWorker();
    Group* next_group = nullptr;
    Queue* next = nullptr;
    for (auto& [group_name, group] : groups_) {
      if (next_group != nullptr && group.served >= next_group->served) continue;
      Queue* least = nullptr;
      for (auto& [queue_name, queue] : group.queues) {
        if (least != nullptr && queue.served >= least->served) continue;
        if (HasTurn(group, &queue, idle != nullptr)) least = &queue;
      }
      if (least == nullptr) continue;
      next_group = &group;
      next = least;
    }
    if (next == nullptr) return;
    GiveTurn(next_group, next, idle);
  }
  if (waiting_ == 0 || watchers_ > 0) return;
  // An idle thread watches for a turn that is overdue.
  if (Worker* const idle = IdleWorker()) idle->wake.notify_one();
}

void TokenizerPool::GiveTurn(Group* group, Queue* queue, Worker* idle) {
  last_group_ = group->served;
  group->last_queue = queue->served;
  const bool large = queue->paused != nullptr ||
                     (idle != nullptr && !queue->large.empty() && MayStartLarge(*group, *queue));
  const bool small = idle != nullptr && !queue->small.empty() && !(large && queue->small_last);
  queue->small_last = small;
  if (!small && queue->paused != nullptr) {
    idle = std::exchange(queue->paused, nullptr);  // continues
  } else {
    Start(group, queue, small ? &queue->small : &queue->large, idle);
  }
  --waiting_;
  ++turns_;
  idle->turn = true;
  idle->since = SteadyClock::now();
  idle->wake.notify_one();
}

void TokenizerPool::Start(Group* group, Queue* queue, std::deque<Ticket>* from, Worker* worker) {
  worker->work = std::move(from->front());
  from->pop_front();
  worker->work->posted = false;
  ++queue->started;
  if (!worker->work->large) return;
  ++queue->large_started;
  ++group->large_started;
  ++large_started_;
}

}  // namespace polysketch
