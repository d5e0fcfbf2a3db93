// Threads for work that would block the thread that has it: gRPC's pollers (tokenizing a long text,
// waiting) and the engine thread (writing to streams).
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace polysketch {

// Thread-safe.
class Executor {
 public:
  explicit Executor(int threads);
  ~Executor() { Stop(); }
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // One thread runs work in the order of the calls. After Stop work is dropped.
  void Post(std::function<void()> work);
  // Posts `work` once `delay` has passed; Stop drops it before.
  void PostAfter(std::chrono::milliseconds delay, std::function<void()> work);
  // From Hold to Release, Post wakes no thread; Release wakes them for all posted work. A thread
  // that posts many things one after the other is not interrupted for each.
  void Hold();
  void Release();
  // Runs posted work, then joins. Not from a thread of the executor.
  void Stop();

 private:
  using SteadyClock = std::chrono::steady_clock;
  void Loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_:
  std::deque<std::function<void()>> work_;
  std::multimap<SteadyClock::time_point, std::function<void()>> later_;  // by the time it is due
  bool held_ = false;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace polysketch
