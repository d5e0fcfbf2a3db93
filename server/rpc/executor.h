// Threads for work that would block the thread that posts it: gRPC's pollers (waiting for files and
// the network) and the engine thread (writing to streams).
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/rpc/stuck_watch.h"

namespace polysketch {

// Thread-safe.
class Executor {
 public:
  explicit Executor(int threads);
  ~Executor() { Stop(); }
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Posts work for the threads. Owners take turns, a piece of work each; the work of one owner starts
  // in the order of the calls. After Stop work is dropped.
  void Post(std::function<void()> work, const std::string& owner = "");
  // Posts `work` once `delay` has passed; Stop drops it before.
  void PostAfter(std::chrono::milliseconds delay, std::function<void()> work);
  // From Hold to Release, Post wakes no thread; Release wakes the threads for all posted work. So a
  // thread that posts many times in a row is not interrupted each time.
  void Hold();
  void Release();
  // Of work that is due, for StuckWatch.
  WorkProgress progress();
  // Runs the posted work, then joins the threads. Not called from a thread of the executor.
  void Stop();

 private:
  using SteadyClock = std::chrono::steady_clock;
  using Work = std::function<void()>;
  using Queues = std::map<std::string, std::deque<Work>>;

  // The functions below hold mutex_.
  void Add(Work work, const std::string& owner);
  Work Take();

  void Loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_:
  Queues work_;                                         // by owner; none is empty
  std::deque<Queues::iterator> turns_;                  // of work_, the next one first
  std::multimap<SteadyClock::time_point, Work> later_;  // by the time it is due
  int64_t running_ = 0;                                 // pieces of work that a thread runs
  int64_t done_ = 0;
  bool held_ = false;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace polysketch
