#include "base/memory_limit.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <new>

#include "base/check.h"
#include "base/log_limit.h"
#include "base/logging.h"

namespace polysketch {
namespace {

// Set aside for allocations that must not fail.
constexpr size_t kAside = size_t{32} << 20;
// Left to libraries in C, which end the process when they find no memory.
constexpr size_t kSpare = size_t{48} << 20;
// Smaller work leaves less, and is told what the last probe of this time has found.
constexpr size_t kSmall = size_t{256} << 10;
constexpr size_t kSpareOfSmall = size_t{16} << 20;
constexpr std::chrono::milliseconds kProbe{1};

std::atomic<bool> g_serving = false;
std::atomic<void*> g_aside = nullptr;
std::atomic<bool> g_fits = true;
std::atomic<int64_t> g_probed_ns = 0;

// Counts against the limits, but is no memory before it is touched.
void* MapBytes(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

void OnNoMemory() {
  if (!g_serving.load()) EndProcess("cannot allocate memory", "a limit of memory (ulimit -v)");
  void* const aside = g_aside.exchange(nullptr);
  if (aside == nullptr) throw std::bad_alloc();
  munmap(aside, kAside);
}

bool Probe(size_t bytes) {
  if (g_aside.load() == nullptr) {
    void* none = nullptr;
    void* const aside = MapBytes(kAside);
    if (aside == nullptr) return false;
    if (!g_aside.compare_exchange_strong(none, aside)) munmap(aside, kAside);
  }
  if (!MemoryIsLimited()) return true;
  bytes += bytes < kSmall ? kSpareOfSmall : kSpare;
  void* const probe = MapBytes(bytes);
  if (probe == nullptr) return false;
  munmap(probe, bytes);
  return true;
}

}  // namespace

bool MemoryIsLimited() {
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit limit{};
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) return true;
  }
  return false;
}

void EndWithoutMemory() { std::set_new_handler(OnNoMemory); }

void SetMemoryAside() {
  g_aside.store(MapBytes(kAside));
  g_serving.store(true);
}

bool MemoryFits(size_t bytes) {
  const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  const bool late =
      now - g_probed_ns.load(std::memory_order_relaxed) > std::chrono::nanoseconds(kProbe).count();
  if (!late && bytes < kSmall) return g_fits.load(std::memory_order_relaxed);
  if (!g_serving.load(std::memory_order_relaxed)) return true;
  g_probed_ns.store(now, std::memory_order_relaxed);
  const bool fits = Probe(bytes);
  if (bytes < kSmall || fits) g_fits.store(fits, std::memory_order_relaxed);
  if (!fits) {
    static LogLimit limit("memory_short_not_logged", 1);
    if (limit.Allow()) {
      LogWarning("memory_short", {{"bytes", bytes},
                                  {"reason", "a limit of memory (ulimit -v)"},
                                  {"effect", "new work is refused"}});
    }
  }
  return fits;
}

}  // namespace polysketch
