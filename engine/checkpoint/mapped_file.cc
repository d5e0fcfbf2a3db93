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
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.ok()) {
    const int error = errno;
    const std::string message = StrCat(path, ": ", std::strerror(error));
    return Status(error == ENOENT ? Code::kNotFound : Code::kFailedPrecondition, message);
  }
  struct stat info {};
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return InvalidArgument(path, ": expected a regular file");
  return Map(file, static_cast<size_t>(info.st_size), path);
}

Result<MappedFile> MappedFile::Map(const Descriptor& file, size_t size, const std::string& path) {
  if (size == 0) return MappedFile(nullptr, 0);
  void* const data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) {
    return ResourceExhausted(path, ": cannot map ", size, " bytes: ", std::strerror(errno));
  }
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
