// PS_CHECK: an invariant of our own code. A broken one aborts with a message; bad input from
// outside never gets here (it is answered with a Status).
#pragma once

#include <sstream>

namespace polysketch {

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Gives the streaming branch of PS_CHECK type void.
struct CheckVoidify {
  void operator&(std::ostream&) const {}
};

}  // namespace polysketch

#define PS_CHECK(condition)                    \
  (condition) ? (void)0                        \
              : ::polysketch::CheckVoidify() & \
                    ::polysketch::CheckFailure(__FILE__, __LINE__, #condition).stream()
