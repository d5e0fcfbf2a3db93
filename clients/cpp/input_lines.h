// Lines of standard input, in UTF-8. Those that a person types can be edited, and earlier ones come
// back by the arrow keys.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "clients/cpp/input.h"

namespace polysketch {

class InputLines {
 public:
  // `typed`: standard input and standard output are a terminal. libedit then edits the line (as
  // ~/.editrc says) and keeps the lines of this process; no file has them.
  explicit InputLines(bool typed);
  // The next line without its end; nullopt: the end of input. `prompt` is printed before a line that
  // is typed. INVALID_ARGUMENT for a line that is not UTF-8: of lines that are typed the next one
  // can be read then, of others none. While a person types, SIGINT ends the program and leaves the terminal as
  // it was.
  Result<std::optional<std::string>> Next(const char* prompt);

 private:
  Result<std::optional<std::string>> Type(const char* prompt);
  Result<std::optional<std::string>> Read();

  const bool typed_;
  std::unique_ptr<InputFile> file_;
  TextReader reader_;
  std::string text_;  // read, and not yet returned
};

}  // namespace polysketch
