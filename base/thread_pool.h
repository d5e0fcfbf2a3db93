// A pool for data-parallel loops inside one engine step.
//
// Determinism: tasks divide outputs, never a sum, so the bits of a result do not depend on which
// thread runs a task.
//
// Cost: between two loops of a step the workers spin, because a decode step has about a hundred
// loops of a few microseconds, and a futex for each would cost more than the work. After kSpin
// without work the workers sleep on a condition variable. A loop ends with its last task: it waits
// for no worker that has taken none, which another process may keep from its processor.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace polysketch {

class ThreadPool {
 public:
  // `threads` counts the caller: 1 runs everything inline and starts no thread.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs fn(task, thread) for every task in [0, tasks), thread in [0, threads()), and returns when
  // all tasks are done. The caller takes part as thread 0. One thread at a time may call
  // ParallelFor (the engine thread owns the pool); fn must not call it.
  template <typename Fn>
  void ParallelFor(int64_t tasks, const Fn& fn) {
    if (tasks <= 0) return;
    if (task_counts_ != nullptr) task_counts_->push_back(tasks);
    if (workers_.empty() || tasks == 1) {
      for (int64_t i = 0; i < tasks; ++i) fn(i, 0);
      return;
    }
    Run(tasks, &fn, [](const void* f, int64_t task, int thread) {
      (*static_cast<const Fn*>(f))(task, thread);
    });
  }

  // Appends the number of tasks of every later loop that has any to *counts, until it is called
  // with null. For tests of how ops divide their work. By the thread that calls ParallelFor.
  void RecordTaskCounts(std::vector<int64_t>* counts) { task_counts_ = counts; }

 private:
  using Thunk = void (*)(const void* fn, int64_t task, int thread);

  void Run(int64_t tasks, const void* fn, Thunk thunk);
  void WorkerLoop(int thread);
  // Runs tasks until none is left to take. Returns whether it ran one.
  bool TakeTasks(int thread);

  // The current loop. Run writes it before it stores claims_. A thread reads it after it has taken
  // a task: until that task is done, the loop cannot end and the next one cannot begin.
  const void* fn_ = nullptr;
  Thunk thunk_ = nullptr;
  int64_t tasks_ = 0;

  std::vector<int64_t>* task_counts_ = nullptr;

  // The number of the loop in the upper half, so that a thread cannot take a task of another loop
  // than the one it saw; in the lower half the tasks that no thread has taken.
  alignas(64) std::atomic<uint64_t> claims_{0};
  alignas(64) std::atomic<int64_t> done_{0};  // tasks of the current loop
  alignas(64) std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};

  std::mutex mutex_;  // guards the sleep of workers only
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace polysketch
