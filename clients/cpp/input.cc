#include "clients/cpp/input.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>

#include "base/utf8.h"

namespace polysketch {
namespace {

constexpr char kSpaces[] = " \n\t\r\v\f";

}  // namespace

Result<std::unique_ptr<InputFile>> InputFile::Open(const std::string& path) {
  const bool is_stdin = path == "-";
  const int fd = is_stdin ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NotFound("cannot open ", path, ": ", strerror(errno));
  const int wake_fd = eventfd(0, EFD_CLOEXEC);
  PS_CHECK(wake_fd >= 0) << "eventfd: " << strerror(errno);
  return std::unique_ptr<InputFile>(new InputFile(is_stdin ? "standard input" : path, fd, wake_fd));
}

InputFile::InputFile(std::string name, int fd, int wake_fd)
    : name_(std::move(name)), fd_(fd), wake_fd_(wake_fd) {}

InputFile::~InputFile() {
  if (fd_ != STDIN_FILENO) close(fd_);
  close(wake_fd_);
}

Status InputFile::AtEnd(bool* at_end) {
  PS_ASSIGN_OR_RETURN(ahead_, Read(kReadBytes));
  *at_end = ahead_.empty();
  return Status();
}

Result<std::string> InputFile::Read(size_t max_bytes) {
  if (!ahead_.empty()) {
    std::string bytes = ahead_.substr(0, max_bytes);
    ahead_.erase(0, bytes.size());
    return bytes;
  }
  pollfd fds[2] = {{fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  while (poll(fds, 2, -1) < 0) PS_CHECK(errno == EINTR) << "poll: " << strerror(errno);
  std::string bytes;
  if (fds[1].revents != 0) return bytes;
  bytes.resize(std::min(max_bytes, kReadBytes));
  ssize_t count;
  do {
    count = read(fd_, bytes.data(), bytes.size());
  } while (count < 0 && errno == EINTR);
  if (count < 0) return InvalidArgument("cannot read ", name_, ": ", strerror(errno));
  bytes.resize(static_cast<size_t>(count));
  return bytes;
}

void InputFile::Interrupt() {
  const uint64_t one = 1;
  PS_CHECK(write(wake_fd_, &one, sizeof(one)) == sizeof(one)) << "eventfd: " << strerror(errno);
}

Result<std::string> TextReader::Read(size_t max_bytes) {
  while (true) {
    PS_ASSIGN_OR_RETURN(std::string bytes, file_->Read(std::max<size_t>(max_bytes, 1)));
    const bool at_end = bytes.empty();
    std::string text = std::move(pending_) + bytes;
    const size_t whole = ValidUtf8Prefix(text);
    pending_ = text.substr(whole);
    if (at_end ? !pending_.empty() : !IsUtf8Beginning(pending_)) {
      return InvalidArgument(file_->name(), " is not UTF-8 at byte ",
                             offset_ + static_cast<int64_t>(whole));
    }
    offset_ += static_cast<int64_t>(whole);
    text.resize(whole);
    if (at_end || !text.empty()) return text;
  }
}

Result<std::vector<int32_t>> TokenReader::Read(size_t max_ids) {
  std::vector<int32_t> ids;
  while (ids.size() < max_ids) {
    next_ = std::min(buffer_.find_first_not_of(kSpaces, next_), buffer_.size());
    size_t end = std::min(buffer_.find_first_of(kSpaces, next_), buffer_.size());

    if (end == buffer_.size() && !at_end_) {  // the next piece may continue the id
      offset_ += static_cast<int64_t>(next_);
      buffer_.erase(0, next_);
      next_ = 0;
      PS_ASSIGN_OR_RETURN(const std::string bytes, file_->Read(kReadBytes));
      at_end_ = bytes.empty();
      buffer_ += bytes;
      // No id is this long. The limit keeps a file without white space out of memory.
      if (buffer_.size() <= 2 * kReadBytes) continue;
      end = buffer_.size();
    }
    if (next_ == end) break;

    const std::string_view word = std::string_view(buffer_).substr(next_, end - next_);
    int32_t id = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || stop != word.data() + word.size()) {
      return InvalidArgument(
          file_->name(), ": expected token ids separated by white space, found '",
          word.substr(0, 40), "' at byte ", offset_ + static_cast<int64_t>(next_));
    }
    ids.push_back(id);
    next_ = end;
  }
  return ids;
}

Status CheckUtf8(std::string_view what, std::string_view text) {
  const size_t whole = ValidUtf8Prefix(text);
  if (whole == text.size()) return Status();
  return InvalidArgument(what, " is not UTF-8 at byte ", whole);
}

void InputOptions::AddText(CLI::App* command) {
  AddOption(command, "-p,--prompt,TEXT", "TEXT",
            "Input text, also without --prompt. Default: standard input, unless it is a\n"
            "terminal.",
            &text);
  AddOption(command, "--prompt-file", "FILE", "File of UTF-8 text. -: standard input.", &text_file);
}

void InputOptions::AddTokens(CLI::App* command) {
  AddOption(command, "--prompt-tokens", "FILE",
            "File of token ids separated by white space. -: standard input.", &token_file);
}

Result<std::unique_ptr<InputFile>> InputOptions::Open() const {
  const int options = text.has_value() + text_file.has_value() + token_file.has_value();
  if (options > 1) return InvalidArgument("expected one input option (see --help)");
  if (options == 0) {
    PS_ASSIGN_OR_RETURN(auto file, InputFile::Open("-"));
    bool none = isatty(STDIN_FILENO) == 1;
    if (!none) PS_RETURN_IF_ERROR(file->AtEnd(&none));
    if (!none) return file;
    return InvalidArgument("expected one input option or standard input (see --help), found none");
  }
  if (!text) return InputFile::Open(text_file ? *text_file : *token_file);
  PS_RETURN_IF_ERROR(CheckUtf8("--prompt", *text));
  return std::unique_ptr<InputFile>();
}

Result<std::string> InputOptions::ReadText() const {
  PS_ASSIGN_OR_RETURN(const auto file, Open());
  if (file == nullptr) return *text;
  TextReader reader(file.get());
  std::string whole;
  while (true) {
    PS_ASSIGN_OR_RETURN(const std::string piece, reader.Read(1 << 20));
    if (piece.empty()) return whole;
    whole += piece;
  }
}

Result<std::vector<int32_t>> InputOptions::ReadTokens() const {
  PS_ASSIGN_OR_RETURN(const auto file, Open());
  return TokenReader(file.get()).Read(std::numeric_limits<size_t>::max());
}

}  // namespace polysketch
