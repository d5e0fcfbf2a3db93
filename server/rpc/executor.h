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
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/principal.h"
#include "base/running_work.h"
#include "base/shares.h"
#include "server/rpc/stuck_watch.h"

namespace polysketch {

// Thread-safe.
class Executor {
 public:
  // A principal runs any number of pieces of work at once, or, with kShares, what Shares::Fits
  // allows, and always one: of 8 threads 6. So one whose work waits for long leaves threads for
  // others.
  enum class Threads { kAny, kShares };
  explicit Executor(int threads, Threads of_principal = Threads::kAny);
  ~Executor() { Stop(); }
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Posts work for the threads. Principals take turns, a piece of work each, and so do the parts of
  // one; the work of a part starts in the order of the calls. After Stop work is dropped. Work that
  // waits for the outside several times calls RunningWork::Moved in between.
  void Post(std::function<void()> work, const Principal& principal = {});
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
  // The posted work of a principal.
  struct Posted {
    using Parts = std::map<std::string, std::deque<Work>, std::less<>>;
    Parts parts;                        // with work
    std::deque<Parts::iterator> turns;  // the next one first
  };
  using Principals = std::map<std::string, Posted, std::less<>>;

  // The functions below hold mutex_.
  void Add(Work work, const Principal& principal);
  // The next piece of work that may start now, with its principal. nullopt: none.
  std::optional<std::pair<Principal, Work>> Take();
  bool MayStart(const Principal& principal) const;
  bool MayStartOne() const;

  void Loop(RunningWork* running);

  const int count_;
  const Threads of_principal_;
  std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_:
  Principals principals_;                               // with posted work
  std::deque<Principals::iterator> turns_;              // the next one first
  std::multimap<SteadyClock::time_point, Work> later_;  // by the time it is due
  int running_ = 0;                                     // pieces of work that a thread runs
  Shares running_of_;                                   // the same, with kShares
  int64_t done_ = 0;
  bool held_ = false;
  bool stop_ = false;
  std::vector<std::unique_ptr<RunningWork>> work_of_threads_;
  std::vector<std::thread> threads_;
};

}  // namespace polysketch
