// A process with a limit of memory: what runs finds memory, new work is told that there is none.
#include "base/memory_limit.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "base/logging.h"
#include "gtest/gtest.h"
#include "tests/testing/environment.h"

namespace polysketch {
namespace {

using ::testing::ExitedWithCode;

constexpr size_t kMiB = size_t{1} << 20;

// Limits the address space to what the process has and `more`.
void Limit(size_t more) {
  long pages = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (std::fscanf(file, "%ld", &pages) != 1) _exit(1);
  std::fclose(file);
  const rlim_t most =
      static_cast<rlim_t>(pages) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + more;
  const rlimit limit{.rlim_cur = most, .rlim_max = most};
  if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(1);
}

void* Map(size_t bytes) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) _exit(2);
  return memory;
}

class MemoryLimit : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::kSanitized) GTEST_SKIP() << "sanitizers map all of the address space";
  }
};

TEST_F(MemoryLimit, NewWorkIsRefusedWhileThereIsLittle) {
  const auto run = [] {
    SetLogLevel(LogLevel::kInfo);
    SetMemoryAside();
    if (!MemoryFits(400 * kMiB)) _exit(3);  // no limit
    Limit(200 * kMiB);
    if (!MemoryFits(100 * kMiB)) _exit(4);
    if (MemoryFits(180 * kMiB)) _exit(5);
    void* const taken = Map(155 * kMiB);
    usleep(2000);
    if (!MemoryFits(1)) _exit(6);
    if (MemoryFits(kMiB)) _exit(7);
    void* const more = Map(35 * kMiB);
    usleep(2000);
    if (MemoryFits(1)) _exit(9);
    if (MemoryFits(1)) _exit(10);  // as the last probe has found
    munmap(more, 35 * kMiB);
    munmap(taken, 155 * kMiB);
    usleep(2000);
    if (!MemoryFits(1)) _exit(8);
    FlushLog();
    _exit(0);
  };
  EXPECT_EXIT(run(), ExitedWithCode(0), "memory_short");
}

TEST_F(MemoryLimit, WorkThatRunsFindsWhatWasSetAside) {
  const auto run = [] {
    EndWithoutMemory();
    SetMemoryAside();
    Limit(100 * kMiB);
    Map(95 * kMiB);
    const std::unique_ptr<char[]> memory(new char[20 * kMiB]);  // of what was set aside
    std::memset(memory.get(), 1, 20 * kMiB);
    usleep(2000);
    if (MemoryFits(1)) _exit(3);
    try {
      ::operator delete(::operator new(60 * kMiB));  // a call, which no compiler leaves out
    } catch (const std::bad_alloc&) {
      _exit(0);
    }
    _exit(4);
  };
  EXPECT_EXIT(run(), ExitedWithCode(0), "");
}

TEST_F(MemoryLimit, AStartWithoutMemoryEndsWithAMessage) {
  const auto run = [] {
    EndWithoutMemory();
    Limit(20 * kMiB);
    ::operator delete(::operator new(60 * kMiB));  // a call, which no compiler leaves out
    _exit(0);
  };
  EXPECT_EXIT(run(), ExitedWithCode(1), "cannot allocate memory: a limit of memory");
}

}  // namespace
}  // namespace polysketch
