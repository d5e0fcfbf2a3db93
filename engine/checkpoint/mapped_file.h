// A read-only private mapping of a regular file.
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"

namespace polysketch {

class MappedFile {
 public:
  // NOT_FOUND if there is no such file; INVALID_ARGUMENT for what is not a regular file.
  static Result<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::byte* data() const { return data_; }  // null if the file is empty
  size_t size() const { return size_; }

  // Says that [begin, begin + bytes) of the mapping will not be read soon: its whole pages leave
  // our resident set (they stay in the page cache, and reading them again gives the same bytes).
  void Release(const std::byte* begin, size_t bytes) const;

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}
  void Unmap();

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace polysketch
