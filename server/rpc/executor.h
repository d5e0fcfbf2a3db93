// Threads for work that would block the thread that posts it: gRPC's pollers (waiting for files and
// the network) and the engine thread (writing to streams).
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/running_work.h"
#include "server/rpc/stuck_watch.h"

namespace polysketch {

// Thread-safe.
class Executor {
 public:
  // An owner runs any number of pieces of work at once, or, with kShares, at most three times as
  // many as threads stay free, and always one: of 8 threads 6. So one whose work waits for long
  // leaves threads for others.
  enum class Threads { kAny, kShares };
  explicit Executor(int threads, Threads of_owner = Threads::kAny);
  ~Executor() { Stop(); }
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Posts work for the threads. Owners take turns, a piece of work each; the work of one owner starts
  // in the order of the calls. After Stop work is dropped. Work that waits for the outside several
  // times calls RunningWork::Moved in between.
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
  struct Owner {
    std::deque<Work> work;
    int running = 0;  // pieces of work
  };
  using Owners = std::map<std::string, Owner>;

  // The functions below hold mutex_.
  void Add(Work work, const std::string& owner);
  // The first turn that may be taken now; the end: none.
  std::deque<Owners::iterator>::iterator NextTurn();
  bool MayStart(const Owner& owner) const;
  Work Take(Owners::iterator owner);
  void Finish(Owners::iterator owner);

  void Loop(RunningWork* running);

  const int count_;
  const Threads of_owner_;
  std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_:
  Owners owners_;                                       // with work, posted or running
  std::deque<Owners::iterator> turns_;                  // with posted work, the next one first
  std::multimap<SteadyClock::time_point, Work> later_;  // by the time it is due
  int running_ = 0;                                     // pieces of work that a thread runs
  int64_t done_ = 0;
  bool held_ = false;
  bool stop_ = false;
  std::vector<std::unique_ptr<RunningWork>> work_of_threads_;
  std::vector<std::thread> threads_;
};

}  // namespace polysketch
