// PS_CHECK(condition) << message: checks an invariant of the program and aborts with the message if
// it is broken. Untrusted input is never checked with PS_CHECK: it yields a Status (base/status.h).
#pragma once

#include <sstream>

namespace polysketch {

// `function` is called before the message of a broken invariant, or of EndProcess: the log writes
// what came before.
void CallBeforeAbort(void (*function)());

// Ends the process with exit status 1: its surroundings lack what it cannot do without. The message
// is "WHAT: REASON".
[[noreturn]] void EndProcess(const char* what, const char* reason);

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Makes the type of PS_CHECK's streaming branch void.
struct CheckVoidify {
  void operator&(std::ostream&) const {}
};

}  // namespace polysketch

#define PS_CHECK(condition)                    \
  (condition) ? (void)0                        \
              : ::polysketch::CheckVoidify() & \
                    ::polysketch::CheckFailure(__FILE__, __LINE__, #condition).stream()
