#pragma once

#include <cstdint>
#include <string_view>

namespace polysketch {

// How far a long input has been read, on stderr: one line that is rewritten on a terminal,
// otherwise a line each time.
class ProgressLine {
 public:
  // what: "reading the prompt". Without a terminal on stderr nothing is shown unless `always`.
  ProgressLine(std::string_view what, bool always);
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Tokens so far and in all; total 0: not known.
  void Show(int64_t processed, int64_t total);
  // Takes the line off the terminal, before other output.
  void Clear();

 private:
  const std::string_view what_;
  const bool is_terminal_;
  const bool enabled_;
  bool shown_ = false;
};

}  // namespace polysketch
