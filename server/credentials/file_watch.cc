#include "server/credentials/file_watch.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/start_thread.h"

namespace polysketch {
namespace {

constexpr std::chrono::seconds kPeriod{1};
constexpr off_t kMaxBytes = off_t{16} << 20;

Result<std::string> ReadOpenFile(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return InvalidArgument(std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return InvalidArgument("expected a regular file");
  if (info.st_size > kMaxBytes)
    return InvalidArgument("expected at most ", kMaxBytes, " bytes, found ", info.st_size);
  std::string content(static_cast<size_t>(info.st_size), '\0');
  size_t size = 0;
  while (size < content.size()) {
    const ssize_t count = read(fd, content.data() + size, content.size() - size);
    if (count < 0) return InvalidArgument(std::strerror(errno));
    if (count == 0) break;  // the file became shorter
    size += static_cast<size_t>(count);
  }
  content.resize(size);
  return content;
}

// What the files hold, errors included, as texts that are compared.
std::vector<std::string> Observed(const Result<std::vector<std::string>>& contents) {
  return contents.ok() ? *contents : std::vector<std::string>{contents.status().message()};
}

}  // namespace

Result<std::vector<std::string>> ReadFiles(const std::vector<std::string>& paths) {
  std::vector<std::string> contents;
  for (const std::string& path : paths) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return InvalidArgument(path, ": ", std::strerror(errno));
    Result<std::string> content = ReadOpenFile(fd);
    close(fd);
    if (!content.ok()) return InvalidArgument(path, ": ", content.status().message());
    contents.push_back(*std::move(content));
  }
  return contents;
}

FileWatch::FileWatch(std::vector<std::string> paths, std::vector<std::string> contents,
                     OnChange on_change)
    : paths_(std::move(paths)),
      on_change_(std::move(on_change)),
      reported_(std::move(contents)),
      thread_(StartThread([this] { Loop(); })) {}

FileWatch::~FileWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void FileWatch::Loop() {
  std::vector<std::string> last = reported_;
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kPeriod, [this] { return stop_; })) {
    lock.unlock();
    const Result<std::vector<std::string>> contents = ReadFiles(paths_);
    std::vector<std::string> now = Observed(contents);
    // Only what has not changed for a period is reported: files of one change are written one after
    // the other.
    if (now == last && now != reported_) {
      on_change_(contents);
      reported_ = now;
    }
    last = std::move(now);
    lock.lock();
  }
}

}  // namespace polysketch
