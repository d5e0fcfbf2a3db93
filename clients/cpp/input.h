// What complete and score read: text or token ids, from the command line, a file or standard input.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "clients/cpp/options.h"

namespace polysketch {

// A file opened for reading whose reader can be woken from another thread while it waits for more.
class InputFile {
 public:
  // "-" is standard input.
  static Result<std::unique_ptr<InputFile>> Open(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Up to `most` bytes, at least one; none at the end of the file or after Interrupt.
  Result<std::string> Read(size_t most);
  // Thread-safe. Ends the Read that waits and all later ones.
  void Interrupt();
  const std::string& name() const { return name_; }

 private:
  InputFile(std::string name, int fd, int wake_fd);

  const std::string name_;
  const int fd_;
  const int wake_fd_;  // an eventfd: readable after Interrupt
};

// A text in pieces of whole UTF-8 characters.
class TextReader {
 public:
  explicit TextReader(InputFile* file) : file_(file) {}
  // Up to about `max_bytes`, empty at the end. INVALID_ARGUMENT names the first byte that is not
  // UTF-8.
  Result<std::string> Read(size_t max_bytes);

 private:
  InputFile* const file_;
  int64_t offset_ = 0;   // of pending_ in the file
  std::string pending_;  // the beginning of a character, at most 3 bytes
};

// Token ids separated by white space.
class TokenReader {
 public:
  explicit TokenReader(InputFile* file) : file_(file) {}
  // Up to `most` ids, none at the end. INVALID_ARGUMENT names what is not a number.
  Result<std::vector<int32_t>> Read(size_t most);

 private:
  InputFile* const file_;
  int64_t offset_ = 0;  // of buffer_[0] in the file
  size_t next_ = 0;     // in buffer_
  std::string buffer_;
  bool at_end_ = false;
};

// The options that name an input. A command adds those that it takes.
struct InputOptions {
  std::optional<std::string> text;        // --prompt
  std::optional<std::string> text_file;   // --prompt-file
  std::optional<std::string> token_file;  // --prompt-tokens

  void AddText(Options* options);
  void AddTokens(Options* options);
  // INVALID_ARGUMENT unless exactly one is given; --prompt must be UTF-8.
  Status Check() const;
  // The file that is named; null for --prompt.
  Result<std::unique_ptr<InputFile>> Open() const;
};

// INVALID_ARGUMENT that names the first byte that is not UTF-8; what: "--prompt".
Status CheckUtf8(std::string_view what, std::string_view text);

// All of a file.
Result<std::string> ReadText(InputFile* file);
Result<std::vector<int32_t>> ReadTokens(InputFile* file);

}  // namespace polysketch
