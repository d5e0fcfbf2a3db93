// mbarriers and the copies that count at them. A copy is made at once or at any time until nothing
// else can run, and the copies of a block in a drawn order, so that a missing wait, a wrong parity and a stage that is used
// again too early show as wrong results or as a deadlock.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/simt/counts.h"
#include "tests/simt/machine.h"
#include "tests/simt/simt.h"

namespace simt {
namespace {

constexpr uint32_t kInitialized = 0x2a;

// In the 8 bytes of an mbarrier.
struct Barrier {
  int32_t bytes;  // announced, less those that have come
  uint32_t count : 12, pending : 12, parity : 1, mark : 7;
};
static_assert(sizeof(Barrier) == sizeof(uint64_t));

// Copies that count at a barrier as bytes, or, without bytes, as an arrival.
struct Counted {
  std::vector<ThreadCopy> copies;
  uint32_t bytes;
  uint64_t* barrier;
};

std::vector<Counted> in_progress;          // of the running block
std::vector<const uint64_t*> not_visible;  // barriers without a fence since their initialisation

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "simt: %s\n", what);
  std::_Exit(1);  // CTest reads nothing that an aborted program says
}

Barrier Load(const uint64_t* address) {
  Barrier barrier;
  std::memcpy(&barrier, address, sizeof(barrier));
  if (barrier.mark != kInitialized) Fail("an mbarrier was not initialised");
  return barrier;
}

void Store(uint64_t* address, Barrier barrier) {
  if (barrier.pending == 0 && barrier.bytes == 0) {
    barrier.parity ^= 1;
    barrier.pending = barrier.count;
  }
  std::memcpy(address, &barrier, sizeof(barrier));
}

void CountDown(uint64_t* address, int32_t bytes, bool arrives) {
  Barrier barrier = Load(address);
  if (arrives && barrier.pending == 0) Fail("more threads arrive at an mbarrier than it counts");
  barrier.pending -= arrives ? 1 : 0;
  barrier.bytes -= bytes;
  Store(address, barrier);
}

void Complete(const Counted& counted) {
  for (const ThreadCopy& copy : counted.copies) Perform(copy);
  CountDown(counted.barrier, static_cast<int32_t>(counted.bytes), counted.bytes == 0);
}

// Completes now or later.
void Start(const Counted& counted) {
  if (Toss()) {
    Complete(counted);
  } else {
    in_progress.push_back(counted);
  }
}

}  // namespace

void BeginBulkCopies() {
  in_progress.clear();
  not_visible.clear();
}

bool MakeBulkCopy(uint64_t random) {
  if (in_progress.empty()) return false;
  std::swap(in_progress[random % in_progress.size()], in_progress.back());
  const Counted counted = in_progress.back();
  in_progress.pop_back();
  Complete(counted);
  return true;
}

void InitBarrier(uint64_t* barrier, uint32_t count) {
  if (count == 0 || count > 1024) Fail("an mbarrier counts 1 to 1024 threads");
  Store(barrier, {.bytes = 0, .count = count, .pending = count, .parity = 0, .mark = kInitialized});
  not_visible.push_back(barrier);
}

void FenceBarriers() { not_visible.clear(); }

void ArriveAt(uint64_t* address, uint32_t bytes) {
  CountDown(address, -static_cast<int32_t>(bytes), true);
  Pause();
}

void ArriveAfterCopies(uint64_t* barrier) { Start({TakeCopies(), 0, barrier}); }

void AwaitPhase(const uint64_t* address, uint32_t parity) {
  WaitUntil([=] { return Load(address).parity != (parity & 1); });
}

void CopyBulk(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0 ||
      bytes % 16 != 0 || bytes == 0) {
    Fail("a bulk copy is not of 16-byte pieces");
  }
  if (std::ranges::find(not_visible, barrier) != not_visible.end()) {
    Fail("a bulk copy counts at an mbarrier that no fence has made visible");
  }
  const int size = static_cast<int>(bytes);
  Start({{{to, from, size, size, 0}}, bytes, barrier});
}

}  // namespace simt
