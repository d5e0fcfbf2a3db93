#include "base/check.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace polysketch {
namespace {

std::atomic<void (*)()> g_before_abort{nullptr};

}  // namespace

void CallBeforeAbort(void (*function)()) { g_before_abort.store(function); }

void EndProcess(const char* what, const char* reason) {
  if (void (*const flush)() = g_before_abort.load(); flush != nullptr) flush();
  std::fprintf(stderr, "%s: %s\n", what, reason);
  std::fflush(stderr);
  _exit(1);
}

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  stream_ << file << ":" << line << ": check failed: " << condition << " ";
}

CheckFailure::~CheckFailure() {
  if (void (*const flush)() = g_before_abort.load(); flush != nullptr) flush();
  std::fprintf(stderr, "%s\n", stream_.str().c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace polysketch
