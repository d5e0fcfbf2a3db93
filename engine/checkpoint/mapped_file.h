// A read-only private mapping of a regular file.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/status.h"

namespace polysketch {

class MappedFile {
 public:
  // NOT_FOUND if there is no such file; INVALID_ARGUMENT for what is not a regular file.
  static Result<MappedFile> Open(const std::string& path);

  const std::byte* data() const { return data_.get(); }  // null if the file is empty
  size_t size() const { return data_.get_deleter().size; }

  // The pages that lie in [begin, begin + bytes) leave the resident set: they will not be read soon.
  // They stay in the page cache, and reading them again gives the same bytes.
  void Release(const std::byte* begin, size_t bytes) const;

 private:
  struct Unmap {
    size_t size = 0;
    void operator()(const std::byte* data) const;
  };

  MappedFile(const std::byte* data, size_t size) : data_(data, Unmap{size}) {}

  std::unique_ptr<const std::byte, Unmap> data_;
};

}  // namespace polysketch
