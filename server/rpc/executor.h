// Threads for work that must not hold up whoever asks for it: gRPC's pollers (tokenizing a long
// text) and the engine (writing to streams).
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace polysketch {

class Executor {
 public:
  explicit Executor(int threads);
  ~Executor() { Stop(); }
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // In the order of posting, if there is one thread. Dropped after Stop.
  void Post(std::function<void()> work);
  // Between the two, what is posted wakes no thread; Release wakes them for all of it. A thread
  // that posts many things one by one would otherwise be interrupted for each.
  void Hold();
  void Release();
  // Runs what has been posted, then joins. Not from a thread of its own.
  void Stop();

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> work_;  // guarded by mutex_
  bool held_ = false;                       // guarded by mutex_
  bool stop_ = false;                       // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace polysketch
