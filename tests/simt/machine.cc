#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "tests/simt/counts.h"
#include "tests/simt/machine.h"
#include "tests/simt/simt.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define PS_SIMT_ASAN 1
#else
#define PS_SIMT_ASAN 0
#endif

#if !defined(__x86_64__)
#error "the fibers of tests/simt are written for x86-64"
#endif

// Saves the callee-saved registers of the running fiber on its stack, stores the stack pointer to
// *from, and continues at `to`.
extern "C" void PsSimtSwitch(void** from, void* to);
asm(R"(
.text
.globl PsSimtSwitch
.type PsSimtSwitch,@function
PsSimtSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size PsSimtSwitch,.-PsSimtSwitch
)");

namespace simt {
namespace {

constexpr size_t kStack = PS_SIMT_ASAN ? 512 << 10 : 128 << 10;

[[noreturn]] void Fail(const char* what, const char* detail) {
  std::fprintf(stderr, "simt: %s%s\n", what, detail);
  std::_Exit(1);  // CTest reads nothing that an aborted program says
}

enum class State { kReady, kInWarp, kAtBarrier, kWaiting, kDone };

struct Fiber {
  Dim3 thread;
  State state = State::kReady;
  void* sp = nullptr;
  std::unique_ptr<char[]> stack;
  std::vector<ThreadCopy> copies;
  int groups = 0;  // committed
  const void* in = nullptr;
  void* out = nullptr;
  const std::function<bool()>* ready = nullptr;  // kWaiting: whether it may go on
};

struct Warp {
  int arrived = 0;
  const char* name = nullptr;  // the collective that its lanes are in
};

struct NamedCount {
  int arrived = 0, rounds = 0;
};

class Machine {
 public:
  void Run(Dim3 grid, Dim3 block, size_t shared_bytes, const std::function<void()>& body) {
    PerformTransfers();
    const int threads = static_cast<int>(block.x * block.y * block.z);
    if (threads == 0 || threads > 1024) Fail("block size out of 1..1024", "");
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) {
      Fail("grid out of range", "");
    }
    if (shared_bytes > shared_limit) Fail("more shared memory than the device allows", "");
    ++launches;
    body_ = &body;
    count_ = threads;
    if (fibers_.size() < static_cast<size_t>(threads)) fibers_.resize(threads);
    // Each block once: from a drawn one in steps that have no divisor in common with their number.
    const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
    random_ = (seed + 1) * 0x9e3779b97f4a7c15ull + launches * 1000003;
    uint64_t at = Random() % blocks, step = 1 + Random() % blocks;
    while (std::gcd(step, blocks) != 1) ++step;
    for (uint64_t i = 0; i < blocks; ++i, at = (at + step) % blocks) {
      const auto x = static_cast<unsigned>(at % grid.x);
      const auto y = static_cast<unsigned>(at / grid.x % grid.y);
      const auto z = static_cast<unsigned>(at / grid.x / grid.y);
      RunBlock(grid, block, {x, y, z}, shared_bytes);
    }
  }

  // Called by a fiber: runs others until this one may go on.
  void Yield() {
    Fiber& fiber = fibers_[running_];
    SwitchToScheduler(&fiber, false);
  }

  void Barrier() {
    fibers_[running_].state = State::kAtBarrier;
    ++at_barrier_;
    ReleaseBarrier();
    if (fibers_[running_].state != State::kReady) Yield();
  }

  void NamedBarrier(int id, int threads) {
    NamedCount& barrier = named_[id];
    const int round = barrier.rounds;
    if (++barrier.arrived == threads) {
      barrier = {0, round + 1};
    } else {
      WaitUntil([&] { return barrier.rounds != round; });
    }
  }

  void Collective(const char* name, Combine combine, const void* in, void* out) {
    const int first = running_ / kWarp * kWarp;
    if (first + kWarp > count_) Fail("a collective in an incomplete warp: ", name);
    Warp& warp = warps_[first / kWarp];
    if (warp.arrived > 0 && std::strcmp(warp.name, name) != 0) {
      std::fprintf(stderr, "simt: lanes of a warp meet in %s and in %s\n", warp.name, name);
      std::abort();
    }
    warp.name = name;
    Fiber& fiber = fibers_[running_];
    fiber.in = in;
    fiber.out = out;
    if (++warp.arrived < kWarp) {
      fiber.state = State::kInWarp;
      Yield();
      return;
    }
    const void* ins[kWarp];
    void* outs[kWarp];
    for (int lane = 0; lane < kWarp; ++lane) {
      ins[lane] = fibers_[first + lane].in;
      outs[lane] = fibers_[first + lane].out;
    }
    combine(ins, outs);
    warp.arrived = 0;
    for (int lane = 0; lane < kWarp; ++lane) fibers_[first + lane].state = State::kReady;
  }

  void WaitUntil(const std::function<bool()>& ready) {
    if (ready()) return;
    Fiber& fiber = fibers_[running_];
    fiber.ready = &ready;
    fiber.state = State::kWaiting;
    SwitchToScheduler(&fiber, false);
  }

  void Pause() {
    if (!Toss()) return;
    leave_warp_ = true;
    SwitchToScheduler(&fibers_[running_], false);
  }

  bool Toss() { return Random() >> 63; }

  Fiber& running() { return fibers_[running_]; }
  char* shared() { return shared_; }

  uint64_t seed = 1;
  int64_t launches = 0;
  size_t shared_limit = 227 << 10;
  std::set<const void*> loaded;

 private:
  static void Entry();

  uint64_t Random() {  // xorshift64*
    random_ ^= random_ >> 12;
    random_ ^= random_ << 25;
    random_ ^= random_ >> 27;
    return random_ * 0x2545f4914f6cdd1dull;
  }

  void RunBlock(Dim3 grid, Dim3 block, Dim3 index, size_t shared_bytes) {
    // malloc'ed anew, so that a sanitizer sees an access beyond it; NaN in every format.
    std::unique_ptr<char[]> memory(new char[shared_bytes + 16]);
    shared_ = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory.get()) + 15) / 16 * 16);
    std::memset(shared_, 0xff, shared_bytes);
    random_ = (seed + 1) * 0x9e3779b97f4a7c15ull + launches * 1000003 + index.x * 7919 +
              index.y * 104729 + index.z;
    warps_.assign((count_ + kWarp - 1) / kWarp, Warp());
    at_barrier_ = 0;
    std::ranges::fill(named_, NamedCount());
    alive_ = count_;
    BeginBulkCopies();
    for (int i = 0; i < count_; ++i) {
      const unsigned u = static_cast<unsigned>(i);
      const Dim3 thread(u % block.x, u / block.x % block.y, u / block.x / block.y);
      Prepare(&fibers_[i], thread);
    }
    blockIdx = index;
    blockDim = block;
    gridDim = grid;
    Schedule();
    shared_ = nullptr;
  }

  void Prepare(Fiber* fiber, Dim3 thread) {
    if (!fiber->stack) fiber->stack.reset(new char[kStack]);
    fiber->thread = thread;
    fiber->state = State::kReady;
    fiber->copies.clear();
    fiber->groups = 0;
    auto* top = reinterpret_cast<void**>(
        (reinterpret_cast<uintptr_t>(fiber->stack.get()) + kStack) / 16 * 16);
    *--top = nullptr;  // where Entry would return to: it never does
    *--top = reinterpret_cast<void*>(&Machine::Entry);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    fiber->sp = top;
  }

  // Stays with a warp as long as one of its lanes can run, or until a lane pauses; then draws another
  // one. Bulk copies are made in between.
  void Schedule() {
    const int warps = static_cast<int>(warps_.size());
    while (alive_ > 0) {
      const int start = static_cast<int>(Random() % warps);
      bool ran = false;
      for (int w = 0; w < warps && !ran; ++w) ran = RunWarp((start + w) % warps);
      if (!ran || Toss()) ran |= MakeBulkCopy(Random());
      if (!ran) Fail("deadlock: ", "some threads wait for others that never come");
    }
  }

  bool RunWarp(int warp) {
    bool ran = false, again = true;
    leave_warp_ = false;
    while (again) {
      again = false;
      const int first = warp * kWarp, last = std::min(first + kWarp, count_);
      const int rotate = static_cast<int>(Random() % (last - first));
      for (int i = 0; i < last - first; ++i) {
        const int lane = first + (i + rotate) % (last - first);
        Fiber& fiber = fibers_[lane];
        if (fiber.state == State::kWaiting && (*fiber.ready)()) fiber.state = State::kReady;
        if (fiber.state != State::kReady) continue;
        Resume(lane);
        if (leave_warp_) return true;
        ran = again = true;
      }
    }
    return ran;
  }

  void Resume(int index) {
    running_ = index;
    Fiber& fiber = fibers_[index];
    threadIdx = fiber.thread;
#if PS_SIMT_ASAN
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, fiber.stack.get(), kStack);
#endif
    PsSimtSwitch(&scheduler_, fiber.sp);
#if PS_SIMT_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  }

  void SwitchToScheduler(Fiber* fiber, [[maybe_unused]] bool final) {
#if PS_SIMT_ASAN
    // The next thread on this stack finds no poison of frames that never return.
    if (final) __asan_handle_no_return();
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(final ? nullptr : &fake, scheduler_stack_, scheduler_size_);
#endif
    PsSimtSwitch(&fiber->sp, scheduler_);
#if PS_SIMT_ASAN
    __sanitizer_finish_switch_fiber(fake, &scheduler_stack_, &scheduler_size_);
#endif
  }

  // Threads that have ended count as arrived.
  void ReleaseBarrier() {
    if (at_barrier_ == 0 || at_barrier_ < alive_) return;
    at_barrier_ = 0;
    for (int i = 0; i < count_; ++i) {
      if (fibers_[i].state == State::kAtBarrier) fibers_[i].state = State::kReady;
    }
  }

  const std::function<void()>* body_ = nullptr;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  NamedCount named_[16];  // barriers
  int count_ = 0, alive_ = 0, at_barrier_ = 0, running_ = 0;
  bool leave_warp_ = false;
  uint64_t random_ = 1;
  void* scheduler_ = nullptr;
  [[maybe_unused]] const void* scheduler_stack_ = nullptr;
  [[maybe_unused]] size_t scheduler_size_ = 0;
  char* shared_ = nullptr;
};

Machine& TheMachine() {
  static Machine machine;
  return machine;
}

void Machine::Entry() {
  Machine& machine = TheMachine();
#if PS_SIMT_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &machine.scheduler_stack_, &machine.scheduler_size_);
#endif
  (*machine.body_)();
  Fiber& fiber = machine.running();
  fiber.state = State::kDone;
  --machine.alive_;
  machine.ReleaseBarrier();
  machine.SwitchToScheduler(&fiber, true);
  Fail("a thread that had ended went on", "");
}

}  // namespace

Dim3 threadIdx, blockIdx, blockDim, gridDim;

void Run(Dim3 grid, Dim3 block, size_t shared_bytes, const std::function<void()>& body) {
  PerformTransfers();
  TheMachine().Run(grid, block, shared_bytes, body);
  CheckGuards();
}
void Seed(uint64_t seed) { TheMachine().seed = seed; }
bool InKernel() { return TheMachine().shared() != nullptr; }
const void* AnchorFunction() { return reinterpret_cast<const void*>(&PsSimtSwitch); }
int64_t Launches() { return TheMachine().launches; }
void Load(const void* kernel) { TheMachine().loaded.insert(kernel); }
int64_t LoadedKernels() { return std::ssize(TheMachine().loaded); }
void UnloadKernels() { TheMachine().loaded.clear(); }
void SetSharedLimit(size_t bytes) { TheMachine().shared_limit = bytes; }
size_t SharedLimit() { return TheMachine().shared_limit; }
void* DynamicShared() { return TheMachine().shared(); }
void SyncThreads() { TheMachine().Barrier(); }
void SyncNamed(int id, int threads) { TheMachine().NamedBarrier(id, threads); }
void SyncWarp() {
  Collective(
      "__syncwarp", [](const void* const*, void* const*) {}, nullptr, nullptr);
}
void Collective(const char* name, Combine combine, const void* in, void* out) {
  TheMachine().Collective(name, combine, in, out);
}

bool Toss() { return TheMachine().Toss(); }
void Pause() { TheMachine().Pause(); }
void WaitUntil(const std::function<bool()>& ready) { TheMachine().WaitUntil(ready); }

void Perform(const ThreadCopy& copy) {
  CountAccess(copy.from, static_cast<size_t>(copy.valid), false);
  std::memcpy(copy.to, copy.from, copy.valid);
  std::memset(static_cast<char*>(copy.to) + copy.valid, 0, copy.bytes - copy.valid);
}
std::vector<ThreadCopy> TakeCopies() { return std::exchange(TheMachine().running().copies, {}); }

void CopyAsync(void* to, const void* from, int bytes, int valid) {
  const auto misplaced = [bytes](const void* at) {
    return reinterpret_cast<uintptr_t>(at) % static_cast<uintptr_t>(bytes) != 0;
  };
  if (misplaced(to) || misplaced(from) || valid < 0 || valid > bytes) {
    Fail("an asynchronous copy: addresses that are no multiples of its size, or too many bytes",
         "");
  }
  Fiber& fiber = TheMachine().running();
  const ThreadCopy copy{to, from, bytes, valid, fiber.groups};
  if (TheMachine().Toss()) {
    Perform(copy);
  } else {
    fiber.copies.push_back(copy);
  }
}
void CommitCopies() { ++TheMachine().running().groups; }
void WaitCopies(int pending_groups) {
  Fiber& fiber = TheMachine().running();
  std::vector<ThreadCopy> later;
  for (const ThreadCopy& copy : fiber.copies) {
    if (copy.group < fiber.groups - pending_groups) {
      Perform(copy);
    } else {
      later.push_back(copy);
    }
  }
  fiber.copies.swap(later);
}

}  // namespace simt
