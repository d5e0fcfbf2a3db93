// Child processes of a test: what they print is kept in files, and none outlives the test.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace polysketch::e2e {

// How long anything may take before the test calls it hung. Long, since sanitizers and a busy
// machine are slow; no test measures time against it.
constexpr std::chrono::seconds kPatience(240);

// Calls `condition` until it holds; false when `patience` has passed without.
bool WaitUntil(const std::function<bool()>& condition,
               std::chrono::milliseconds patience = kPatience);

struct ProcessOptions {
  std::vector<std::string> arguments = {};                            // the program first
  std::vector<std::pair<std::string, std::string>> environment = {};  // added to the test's own
  std::string standard_input = {};
};

class Process {
 public:
  // Aborts the test when the program cannot be started.
  explicit Process(const ProcessOptions& options);
  ~Process();  // kills it if it still runs
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal);
  // The exit status, or minus the signal that ended it; none when it still runs after `patience`.
  std::optional<int> Wait(std::chrono::milliseconds patience = kPatience);
  bool Running() { return !Wait(std::chrono::milliseconds(0)).has_value(); }

  // Everything printed so far.
  std::string StandardOutput() const;
  std::string StandardError() const;

 private:
  std::filesystem::path folder_;  // holds the files stdin, stdout and stderr
  pid_t pid_ = -1;
  std::optional<int> exit_status_;
};

struct ProcessResult {
  int exit_status = 0;
  std::string standard_output;
  std::string standard_error;
};
// Runs a program to its end.
ProcessResult RunProcess(const ProcessOptions& options);

// build/<preset>/bin/NAME of the build that the test belongs to.
std::string Binary(const std::string& name);

// A folder under the system's temporary one, which the caller removes.
std::filesystem::path NewTemporaryFolder();

std::string ReadFile(const std::filesystem::path& path);
void WriteFile(const std::filesystem::path& path, const std::string& content);

}  // namespace polysketch::e2e
