#include "clients/cpp/progress.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "base/status.h"

namespace polysketch {

ProgressLine::ProgressLine(std::string_view what, bool always, std::string_view unit)
    : what_(what),
      unit_(unit),
      is_terminal_(isatty(STDERR_FILENO) == 1),
      enabled_(always || is_terminal_) {}

void ProgressLine::Show(int64_t processed, int64_t total) {
  if (!enabled_) return;
  std::string line = StrCat(what_, ": ", processed);
  if (total > 0) line += StrCat(" of ", total);
  line += StrCat(" ", unit_);
  std::fputs(is_terminal_ ? ("\r" + line + "\033[K").c_str() : (line + "\n").c_str(), stderr);
  shown_ = true;
}

void ProgressLine::Clear() {
  if (shown_ && is_terminal_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}

}  // namespace polysketch
