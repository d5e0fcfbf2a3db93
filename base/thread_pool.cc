#include "base/thread_pool.h"

#include <chrono>

#include "base/check.h"
#include "base/thread_name.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace polysketch {
namespace {

// Long enough to bridge the serial parts of a step (sampling, building the next batch), short
// enough that an idle server uses no CPU.
constexpr auto kSpin = std::chrono::microseconds(200);
// On a machine whose cores are shared with other busy processes, a spinning thread may hold the
// core that the thread it waits for needs. Yielding after every kSpinsPerYield spins bounds that
// loss.
constexpr int kSpinsPerYield = 2000;

void CpuRelax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  PS_CHECK(threads >= 1) << "threads=" << threads;
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { WorkerLoop(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int64_t tasks, const void* fn, Thunk thunk) {
  fn_ = fn;
  thunk_ = thunk;
  tasks_ = tasks;
  next_.store(0, std::memory_order_relaxed);
  running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  // seq_cst, as the worker's increment of sleeping_: either the worker sees the new generation
  // before it sleeps, or this thread sees that it sleeps.
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
  DrainTasks(0);
  for (int spins = 0; running_.load(std::memory_order_acquire) != 0;) {
    CpuRelax();
    if (++spins % kSpinsPerYield == 0) std::this_thread::yield();
  }
}

void ThreadPool::DrainTasks(int thread) {
  for (;;) {
    const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks_) return;
    thunk_(fn_, task, thread);
  }
}

void ThreadPool::WorkerLoop(int thread) {
  NameThread(kPoolThreadName);
  uint64_t seen = 0;
  for (;;) {
    const auto start = std::chrono::steady_clock::now();
    for (int spins = 1; generation_.load(std::memory_order_acquire) == seen; ++spins) {
      if (stop_.load(std::memory_order_relaxed)) return;
      CpuRelax();
      if (spins % kSpinsPerYield != 0) continue;
      std::this_thread::yield();
      if (std::chrono::steady_clock::now() - start < kSpin) continue;
      std::unique_lock<std::mutex> lock(mutex_);
      sleeping_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] {
        return stop_.load() || generation_.load(std::memory_order_seq_cst) != seen;
      });
      sleeping_.fetch_sub(1, std::memory_order_relaxed);
    }
    ++seen;
    DrainTasks(thread);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace polysketch
