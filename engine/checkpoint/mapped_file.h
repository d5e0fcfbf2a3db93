// A read-only private mapping of a regular file.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/descriptor.h"
#include "base/status.h"

namespace polysketch {

class MappedFile {
 public:
  // NOT_FOUND if the file does not exist, FAILED_PRECONDITION if it cannot be opened,
  // INVALID_ARGUMENT if it is not a regular file, RESOURCE_EXHAUSTED if it cannot be mapped.
  static Result<MappedFile> Open(const std::string& path);
  // Maps `size` bytes of an open file, which is not empty unless `size` is 0. `path`: for messages.
  // RESOURCE_EXHAUSTED if it cannot be mapped.
  static Result<MappedFile> Map(const Descriptor& file, size_t size, const std::string& path);

  const std::byte* data() const { return data_.get(); }  // null if the file is empty
  size_t size() const { return data_.get_deleter().size; }

  // Removes the whole pages inside [begin, begin + bytes) from the resident set. The pages stay in
  // the page cache, and the bytes can be read again.
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
