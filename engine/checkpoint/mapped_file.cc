#include "engine/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace polysketch {

Result<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not block.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;
    const std::string message = StrCat(path, ": ", std::strerror(error));
    return Status(error == ENOENT ? Code::kNotFound : Code::kFailedPrecondition, message);
  }
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return InvalidArgument(path, ": expected a regular file");
  }
  const auto size = static_cast<size_t>(info.st_size);
  void* data = nullptr;
  int error = 0;
  if (size > 0) {
    data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) error = errno;
  }
  close(fd);
  if (error != 0)
    return ResourceExhausted(path, ": cannot map ", size, " bytes: ", std::strerror(error));
  return MappedFile(static_cast<const std::byte*>(data), size);
}

void MappedFile::Unmap::operator()(const std::byte* data) const {
  munmap(const_cast<std::byte*>(data), size);
}

void MappedFile::Release(const std::byte* begin, size_t bytes) const {
  PS_CHECK(begin >= data() && begin + bytes <= data() + size()) << "not a part of this file";
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  // Whole pages only: the first and the last page may also hold bytes outside the range.
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(begin) + bytes) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace polysketch
