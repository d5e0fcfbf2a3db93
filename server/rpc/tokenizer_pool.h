// Threads that parse and tokenize large requests, for gRPC's threads. Clients are served in turn,
// by bytes of work: a long text is tokenized in slices, and between two slices the client that has
// had least goes first.
//
// One thread works at a time, so that tokenizing takes one processor from the model at most. Work
// that holds its turn for longer than kTurn (a text that cannot be cut) loses it: another thread
// works beside it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/shares.h"
#include "base/turns.h"
#include "server/rpc/stuck_watch.h"

namespace polysketch {

// Thread-safe.
class TokenizerPool {
 public:
  struct Work;
  using Ticket = std::shared_ptr<Work>;

  // Work on more input is large: it starts only if a thread for small work is left.
  static constexpr int64_t kSmallBytes = 64 << 10;
  static constexpr std::chrono::milliseconds kTurn{50};

  // `threads`: at least 2. `turn`: time after which a turn is overdue.
  explicit TokenizerPool(int threads = 9, std::chrono::milliseconds turn = kTurn);
  ~TokenizerPool();
  TokenizerPool(const TokenizerPool&) = delete;
  TokenizerPool& operator=(const TokenizerPool&) = delete;

  // Posts work on `bytes` of input. Principals are served in turn, and so are the parts of one.
  // After Stop work is dropped.
  Ticket Post(const Principal& principal, int64_t bytes, std::function<void()> work);
  // Drops work that has not started, and destroys its function. Work that has started ends at its
  // next slice: the tokenizer returns CANCELLED to it. Does nothing for work that has ended, and
  // for null.
  void Drop(const Ticket& ticket);
  // For StuckWatch: a piece of work is a slice.
  WorkProgress progress();
  // Drops all work and joins the threads. Not called from a thread of the pool.
  void Stop();

 private:
  struct Worker;
  // The work of one part of a principal. Large work of a part runs one after the other.
  struct Queue {
    std::deque<Ticket> small;
    std::deque<Ticket> large;
    Worker* paused = nullptr;  // large work that waits for its next turn
    int started = 0;           // small and large
    int large_started = 0;
    bool small_last = false;  // the last turn was for small work
  };
  class Pace;

  void Loop(Worker* worker);
  bool Continue(Worker* worker, int64_t bytes);
  // The functions below hold mutex_. Dispatch gives the turn, if it is free, to the owner that has
  // had least.
  void Dispatch();
  bool MayStartLarge(const Principal& principal, const Queue& queue) const;
  bool HasTurn(const Principal& principal, const Queue& queue, bool idle) const;
  void GiveTurn(const Principal& principal, Queue* queue, Worker* idle);
  void Start(const Principal& principal, Queue* queue, std::deque<Ticket>* from, Worker* worker);
  void EndTurn(Worker* worker);
  void Finish(Worker* worker);
  void AwaitTurn(Worker* worker, std::unique_lock<std::mutex>* lock);
  void TakeOverdueTurns();
  Worker* IdleWorker() const;
  void Forget(Work* work);

  const std::chrono::milliseconds turn_;
  std::mutex mutex_;
  // Guarded by mutex_:
  std::map<Principal, Queue> queues_;  // with work
  Turns times_;                        // bytes
  int64_t waiting_ = 0;                // work that waits for a turn, started or not
  int turns_ = 0;                      // workers with a turn that is not overdue
  Shares large_started_;
  int64_t turns_ended_ = 0;
  int watchers_ = 0;  // workers that wait, at most turn_
  bool stop_ = false;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace polysketch
