// What the fuzz targets share. A target is a function from bytes to nothing: a broken invariant, a
// sanitizer's report, an uncaught exception or too much memory or time is a finding.
#pragma once

#include <fcntl.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/utf8.h"

namespace polysketch::fuzz {

// Checks what every error promises: a text that a client, a terminal and a log can show.
inline void CheckError(const Status& status) {
  PS_CHECK(!status.ok());
  PS_CHECK(!status.message().empty());
  PS_CHECK(ValidUtf8Prefix(status.message()) == status.message().size()) << status.message();
}

// Errors of a gRPC call travel in a header, of which a client accepts 8 KiB.
inline constexpr size_t kMaxGrpcError = 4096;

// A file in memory, which has a path.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("fuzz", MFD_CLOEXEC)) { PS_CHECK(fd_ >= 0); }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }
  void Write(std::string_view bytes) {
    PS_CHECK(ftruncate(fd_, static_cast<off_t>(bytes.size())) == 0);
    PS_CHECK(pwrite(fd_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  }

 private:
  const int fd_;
};

// A new folder below TMPDIR, removed when the object is. scripts/fuzz sets TMPDIR to a folder in
// memory.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "fuzz-XXXXXX").string();
    PS_CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Warnings are part of what is tested, but not of the output.
inline const bool kQuiet = [] {
  SetLogLevel(LogLevel::kError);
  return true;
}();

}  // namespace polysketch::fuzz
