#include "server/net/ignored_parameters.h"

#include <atomic>
#include <mutex>

#include "base/logging.h"

namespace polysketch {
namespace {

std::mutex mutex;
std::map<std::string, uint64_t>& Counts() {  // guarded by mutex
  static std::map<std::string, uint64_t> counts;
  return counts;
}
std::atomic<bool> strict_parameters{false};

}  // namespace

void CountIgnoredParameter(std::string_view name) {
  bool first = false;
  std::string key(name);
  {
    std::lock_guard lock(mutex);
    std::map<std::string, uint64_t>& counts = Counts();
    const bool kept = name.size() <= kMaxIgnoredNameBytes &&
                      (counts.size() < kMaxIgnoredNames || counts.contains(key));
    if (!kept) key = "other";
    first = counts[key]++ == 0;
  }
  if (first) LogWarning("parameter_ignored", {{"parameter", key}});
}

std::map<std::string, uint64_t> IgnoredParameters() {
  std::lock_guard lock(mutex);
  return Counts();
}

void SetStrictParameters(bool strict) { strict_parameters = strict; }
bool StrictParameters() { return strict_parameters; }

}  // namespace polysketch
