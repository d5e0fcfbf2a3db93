// Progress through a long input, on stderr.
#pragma once

#include <cstdint>
#include <string_view>

namespace polysketch {

constexpr char kProgressHelp[] = "Shows progress on stderr. Default: on terminals only.";

// Shows progress: on a terminal in one line that is rewritten, else in a line for each update.
class ProgressLine {
 public:
  // what: "reading the prompt". unit: of the numbers. Unless stderr is a terminal or `always` is
  // set, nothing is shown.
  ProgressLine(std::string_view what, bool always, std::string_view unit = "tokens");
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // total: 0: unknown.
  void Show(int64_t processed, int64_t total);
  // Removes the line from the terminal, before other output.
  void Clear();

 private:
  const std::string_view what_;
  const std::string_view unit_;
  const bool is_terminal_;
  const bool enabled_;
  bool shown_ = false;
};

}  // namespace polysketch
