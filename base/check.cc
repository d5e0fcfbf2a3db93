#include "base/check.h"

#include <cstdio>
#include <cstdlib>

#include "base/logging.h"

namespace polysketch {

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  stream_ << file << ":" << line << ": check failed: " << condition << " ";
}

CheckFailure::~CheckFailure() {
  FlushLog();  // what came before
  std::fprintf(stderr, "%s\n", stream_.str().c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace polysketch
