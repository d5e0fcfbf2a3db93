#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace polysketch {
namespace {

TEST(ThreadPoolTest, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t tasks : {0, 1, 2, 7, 100, 1000}) {
      std::vector<int> runs(tasks, 0);  // each task writes its own element: no lock
      pool.ParallelFor(tasks, [&](int64_t task, int thread) {
        ASSERT_GE(thread, 0);
        ASSERT_LT(thread, threads);
        ++runs[task];
      });
      for (const int64_t count : runs) EXPECT_EQ(count, 1);
    }
  }
}

TEST(ThreadPoolTest, WritesOfTasksAreSeenByTheCaller) {
  ThreadPool pool(4);
  std::vector<int64_t> values(64, 0);
  for (int round = 1; round <= 3000; ++round) {
    pool.ParallelFor(64, [&](int64_t task, int) { values[task] += task; });
    for (int64_t task = 0; task < 64; ++task) ASSERT_EQ(values[task], task * round);
  }
}

TEST(ThreadPoolTest, WakesSleepingWorkers) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    // Longer than a worker spins, so that it sleeps; around that length too, to meet it on its way.
    std::this_thread::sleep_for(std::chrono::microseconds(round * 50));
    std::vector<int> runs(50, 0);
    pool.ParallelFor(50, [&](int64_t task, int) { ++runs[task]; });
    for (const int count : runs) EXPECT_EQ(count, 1);
  }
}

// A worker that has taken a task may be kept from its processor for a while; the others do the
// rest.
TEST(ThreadPoolTest, AFewTasksOfManyLoopsRunOnceEach) {
  ThreadPool pool(5);
  for (int64_t round = 0; round < 20000; ++round) {
    const int64_t tasks = 2 + round % 3;
    std::vector<int> runs(static_cast<size_t>(tasks), 0);
    pool.ParallelFor(tasks, [&](int64_t task, int) { ++runs[static_cast<size_t>(task)]; });
    for (const int count : runs) ASSERT_EQ(count, 1) << round;
  }
}

TEST(ThreadPoolTest, EndsWhileWorkersSleepOrSpin) {
  for (int round = 0; round < 20; ++round) {
    ThreadPool pool(3);
    std::this_thread::sleep_for(std::chrono::microseconds(round * 40));
  }
}

}  // namespace
}  // namespace polysketch
