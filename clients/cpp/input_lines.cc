#include "clients/cpp/input_lines.h"

#include <editline/readline.h>
#include <fcntl.h>
#include <langinfo.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace polysketch {
namespace {

constexpr int kMaxHistoryLines = 1000;

struct Free {
  void operator()(char* text) const { std::free(text); }
};

// libedit reads characters by the locale, and this program reads UTF-8.
void UseUtf8() {
  setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

InputLines::InputLines(bool typed)
    : typed_(typed), file_(InputFile::Open("-").value()), reader_(file_.get()) {
  if (!typed_) return;
  UseUtf8();
  rl_readline_name = "polysketch";
  rl_catch_signals = 1;       // restores the terminal, then ends the program
  rl_inhibit_completion = 1;  // of names of files
  // Ctrl-D before the prompt arrives as a zero, which libedit takes for "insert the next key".
  // readline() binds the keys of the terminal anew at each call, hence a hook.
  rl_pre_input_hook = [] { return rl_parse_and_bind("bind ^@ em-delete-or-list"); };
  // Where the process group has the leader of the session, as in a container, no shell would continue
  // it: the kernel drops the stop of Ctrl-Z, which libedit takes for the end of input.
  if (getpgrp() == getsid(0)) {
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  }
  using_history();
  stifle_history(kMaxHistoryLines);
  // libedit takes a terminal that another program has left without blocking for the end of input.
  fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) & ~O_NONBLOCK);
}

Result<std::optional<std::string>> InputLines::Next(const char* prompt) {
  return typed_ ? Type(prompt) : Read();
}

Result<std::optional<std::string>> InputLines::Type(const char* prompt) {
  errno = 0;
  const std::unique_ptr<char, Free> typed(readline(prompt));
  // libedit leaves such bytes out, and says so in errno alone.
  if (typed != nullptr && errno == EILSEQ)
    return InvalidArgument("standard input: expected UTF-8, found other bytes in the line");
  if (typed == nullptr) return std::optional<std::string>();
  std::string line = typed.get();
  if (line.find_first_not_of(" \t") != std::string::npos) add_history(line.c_str());
  return std::optional(std::move(line));
}

Result<std::optional<std::string>> InputLines::Read() {
  size_t end;
  while ((end = text_.find('\n')) == std::string::npos) {
    PS_ASSIGN_OR_RETURN(const std::string more, reader_.Read(kReadBytes));
    if (!more.empty()) {
      text_ += more;
      continue;
    }
    if (text_.empty()) return std::optional<std::string>();
    return std::optional(std::exchange(text_, ""));
  }
  std::string line = text_.substr(0, end);
  text_.erase(0, end + 1);
  if (line.ends_with('\r')) line.pop_back();
  return std::optional(std::move(line));
}

}  // namespace polysketch
