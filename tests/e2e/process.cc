#include "tests/e2e/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/check.h"
#include "base/status.h"

namespace polysketch::e2e {
namespace {

using std::chrono::steady_clock;

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& string : strings) pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> Environment(
    const std::vector<std::pair<std::string, std::string>>& additions) {
  std::vector<std::string> variables;
  variables.reserve(additions.size());
  for (const auto& [name, value] : additions) variables.push_back(StrCat(name, "=", value));
  // The first of two variables with one name counts.
  for (char** variable = environ; *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  return variables;
}

int OpenFile(const std::filesystem::path& path, int flags) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC, 0600);
  PS_CHECK(fd >= 0) << path << ": " << strerror(errno);
  return fd;
}

}  // namespace

bool WaitUntil(const std::function<bool()>& condition, std::chrono::milliseconds patience) {
  const auto end = steady_clock::now() + patience;
  while (!condition()) {
    if (steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

Process::Process(const ProcessOptions& options) : folder_(NewTemporaryFolder()) {
  WriteFile(folder_ / "stdin", options.standard_input);
  const int files[3] = {OpenFile(folder_ / "stdin", O_RDONLY),
                        OpenFile(folder_ / "stdout", O_WRONLY | O_CREAT | O_TRUNC),
                        OpenFile(folder_ / "stderr", O_WRONLY | O_CREAT | O_TRUNC)};
  // Everything that allocates happens before the fork: the test has other threads.
  const std::vector<char*> arguments = Pointers(options.arguments);
  const std::vector<std::string> variables = Environment(options.environment);
  const std::vector<char*> environment = Pointers(variables);

  pid_ = fork();
  PS_CHECK(pid_ >= 0) << "fork: " << strerror(errno);
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < 3; ++i) dup2(files[i], i);
    execve(arguments[0], arguments.data(), environment.data());
    _exit(127);
  }
  for (const int file : files) close(file);
}

Process::~Process() {
  if (Running()) {
    Signal(SIGKILL);
    Wait();
  }
  std::filesystem::remove_all(folder_);
}

void Process::Signal(int signal) {
  if (!exit_status_) kill(pid_, signal);
}

std::optional<int> Process::Wait(std::chrono::milliseconds patience) {
  WaitUntil(
      [this] {
        if (exit_status_) return true;
        int status = 0;
        const pid_t ended = waitpid(pid_, &status, WNOHANG);
        PS_CHECK(ended >= 0) << "waitpid: " << strerror(errno);
        if (ended == pid_) {
          exit_status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        }
        return exit_status_.has_value();
      },
      patience);
  return exit_status_;
}

std::string Process::StandardOutput() const { return ReadFile(folder_ / "stdout"); }
std::string Process::StandardError() const { return ReadFile(folder_ / "stderr"); }

ProcessResult RunProcess(const ProcessOptions& options) {
  Process process(options);
  const std::optional<int> status = process.Wait();
  PS_CHECK(status.has_value()) << options.arguments[0] << " hangs: " << process.StandardError();
  return {*status, process.StandardOutput(), process.StandardError()};
}

std::string Binary(const std::string& name) {
  const char* folder = std::getenv("POLYSKETCH_BIN_DIR");
  PS_CHECK(folder != nullptr) << "POLYSKETCH_BIN_DIR is not set; run this test by ctest";
  return std::string(folder) + "/" + name;
}

std::filesystem::path NewTemporaryFolder() {
  std::string name = std::filesystem::temp_directory_path() / "polysketch-e2e-XXXXXX";
  PS_CHECK(mkdtemp(name.data()) != nullptr) << name << ": " << strerror(errno);
  return name;
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  PS_CHECK(file.good()) << "cannot read " << path;
  std::ostringstream content;
  content << file.rdbuf();
  return std::move(content).str();
}

void WriteFile(const std::filesystem::path& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  PS_CHECK(file.good()) << "cannot write " << path;
}

}  // namespace polysketch::e2e
