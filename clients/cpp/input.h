// The input of a command: text or token ids, from the command line, a file or standard input.
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

// An open file, from which one thread reads. Another thread can end a Read that waits for input.
class InputFile {
 public:
  // "-" is standard input.
  static Result<std::unique_ptr<InputFile>> Open(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Returns 1 to `max_bytes` bytes. Empty: the end of the file, or Interrupt was called.
  Result<std::string> Read(size_t max_bytes);
  // Waits for the first bytes, which stay to be read. *at_end: whether there are none.
  Status AtEnd(bool* at_end);
  // Thread-safe. Ends a waiting Read and all later ones.
  void Interrupt();
  const std::string& name() const { return name_; }

 private:
  InputFile(std::string name, int fd, int wake_fd);

  const std::string name_;
  const int fd_;
  const int wake_fd_;  // eventfd, readable after Interrupt
  std::string ahead_;  // read by AtEnd
};

// Bytes of one system call: a larger buffer would be fresh memory for each.
inline constexpr size_t kReadBytes = size_t{64} << 10;

// Reads text in pieces of whole UTF-8 characters.
class TextReader {
 public:
  explicit TextReader(InputFile* file) : file_(file) {}
  // Returns up to about `max_bytes` bytes. Empty: the end. INVALID_ARGUMENT names the first byte
  // that is not UTF-8.
  Result<std::string> Read(size_t max_bytes);

 private:
  InputFile* const file_;
  int64_t offset_ = 0;   // position of pending_ in the file
  std::string pending_;  // incomplete character, at most 3 bytes
};

// Reads token ids separated by white space.
class TokenReader {
 public:
  explicit TokenReader(InputFile* file) : file_(file) {}
  // Returns at most `max_ids` ids. Empty: the end. INVALID_ARGUMENT names a word that is not an id.
  Result<std::vector<int32_t>> Read(size_t max_ids);

 private:
  InputFile* const file_;
  int64_t offset_ = 0;  // position of buffer_[0] in the file
  size_t next_ = 0;     // index of the next byte in buffer_
  std::string buffer_;
  bool at_end_ = false;
};

// The options that name an input. A command adds the options that it accepts.
struct InputOptions {
  std::optional<std::string> text;        // --prompt, or an argument without a name
  std::optional<std::string> text_file;   // --prompt-file
  std::optional<std::string> token_file;  // --prompt-tokens

  void AddText(CLI::App* command);
  void AddTokens(CLI::App* command);
  bool given() const { return text || text_file || token_file; }
  // Opens the named file, or standard input where no option is given and no person types there;
  // null for --prompt. INVALID_ARGUMENT for several options, for none and no input, and for
  // --prompt that is not UTF-8.
  Result<std::unique_ptr<InputFile>> Open() const;
  // The whole input. Errors as for Open.
  Result<std::string> ReadText() const;             // of text
  Result<std::vector<int32_t>> ReadTokens() const;  // of token ids
};

// INVALID_ARGUMENT names the first byte of `text` that is not UTF-8. what: "--prompt".
Status CheckUtf8(std::string_view what, std::string_view text);

}  // namespace polysketch
