// Files of the operator that the server reads again when they change.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"

namespace polysketch {

// The contents of `paths`, in their order. INVALID_ARGUMENT names the file that cannot be read, is
// not a regular file or has more than 16 MiB.
Result<std::vector<std::string>> ReadFiles(const std::vector<std::string>& paths);

// Compares contents, so that it notices any way to replace a file: writes, renames, symbolic links
// (as Kubernetes updates a mounted Secret).
class FileWatch {
 public:
  using OnChange = std::function<void(const Result<std::vector<std::string>>& contents)>;

  // Calls `on_change`, on a thread of its own, within three seconds after a change of a file and
  // with the contents of all. `contents`: what the files held before.
  FileWatch(std::vector<std::string> paths, std::vector<std::string> contents, OnChange on_change);
  ~FileWatch();
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

 private:
  void Loop();

  const std::vector<std::string> paths_;
  const OnChange on_change_;
  std::vector<std::string> reported_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace polysketch
