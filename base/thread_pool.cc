#include "base/thread_pool.h"

#include <chrono>

#include "base/check.h"
#include "base/start_thread.h"
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
constexpr uint64_t kTasksLeft = 0xFFFFFFFF;  // the lower half of claims_

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
  for (int i = 1; i < threads; ++i) workers_.push_back(StartThread([this, i] { WorkerLoop(i); }));
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
  PS_CHECK(tasks <= static_cast<int64_t>(kTasksLeft)) << "tasks=" << tasks;
  fn_ = fn;
  thunk_ = thunk;
  tasks_ = tasks;
  done_.store(0, std::memory_order_relaxed);
  const uint64_t loop = (claims_.load(std::memory_order_relaxed) | kTasksLeft) + 1;
  // seq_cst, as the worker's increment of sleeping_: either the worker sees the new tasks before it
  // sleeps, or this thread sees that it sleeps.
  claims_.store(loop | static_cast<uint64_t>(tasks), std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
  TakeTasks(0);
  for (int spins = 0; done_.load(std::memory_order_acquire) != tasks;) {
    CpuRelax();
    if (++spins % kSpinsPerYield == 0) std::this_thread::yield();
  }
}

bool ThreadPool::TakeTasks(int thread) {
  int64_t done = 0;
  uint64_t claims = claims_.load(std::memory_order_acquire);
  while ((claims & kTasksLeft) != 0) {
    if (!claims_.compare_exchange_weak(claims, claims - 1, std::memory_order_acquire)) continue;
    thunk_(fn_, tasks_ - static_cast<int64_t>(claims & kTasksLeft), thread);
    ++done;
    claims = claims_.load(std::memory_order_acquire);
  }
  if (done > 0) done_.fetch_add(done, std::memory_order_release);
  return done > 0;
}

void ThreadPool::WorkerLoop(int thread) {
  NameThread(kPoolThreadName);
  auto start = std::chrono::steady_clock::now();
  for (int spins = 1; !stop_.load(std::memory_order_relaxed); ++spins) {
    if (TakeTasks(thread)) {
      spins = 0;
      start = std::chrono::steady_clock::now();
      continue;
    }
    CpuRelax();
    if (spins % kSpinsPerYield != 0) continue;
    std::this_thread::yield();
    if (std::chrono::steady_clock::now() - start < kSpin) continue;
    // A loop that has begun wakes the worker even if its tasks are all taken by then: others
    // follow.
    const uint64_t seen = claims_.load(std::memory_order_relaxed) & ~kTasksLeft;
    std::unique_lock<std::mutex> lock(mutex_);
    sleeping_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock,
               [&] { return stop_.load() || claims_.load(std::memory_order_seq_cst) != seen; });
    sleeping_.fetch_sub(1, std::memory_order_relaxed);
    start = std::chrono::steady_clock::now();
  }
}

}  // namespace polysketch
