#include "server/gateway/zip_archive.h"

#include <zlib.h>

#include <initializer_list>
#include <utility>

#include "server/convert/deflate.h"

namespace polysketch {
namespace {

constexpr uint32_t kFileHeader = 0x04034b50;
constexpr uint32_t kDirectoryEntry = 0x02014b50;
constexpr uint32_t kDirectoryEnd = 0x06054b50;
constexpr uint16_t kVersion = 20;  // the first with deflate
constexpr uint16_t kDeflate = 8;
constexpr uint16_t kDay = (1 << 5) | 1;  // 1 January 1980, the first that the format can say

struct Number {
  uint32_t value;
  int bytes;
};

// The least significant byte first.
void Append(std::initializer_list<Number> numbers, std::string* to) {
  for (const auto [value, bytes] : numbers)
    for (int i = 0; i < bytes; ++i) to->push_back(static_cast<char>(value >> (8 * i)));
}

}  // namespace

void ZipArchive::Add(std::string_view name, std::string_view content) {
  const auto offset = static_cast<uint32_t>(files_.size());
  const std::string data = Deflated(content, Z_DEFAULT_COMPRESSION, /*gzip=*/false);
  const auto crc = static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size()));
  const auto packed = static_cast<uint32_t>(data.size()),
             size = static_cast<uint32_t>(content.size()),
             name_size = static_cast<uint32_t>(name.size());
  // Of the header of the file and of its entry in the directory; no flags, no time, no extra
  // fields.
  std::string common;
  Append({{kVersion, 2}, {0, 2}, {kDeflate, 2}, {0, 2}, {kDay, 2}, {crc, 4}}, &common);
  Append({{packed, 4}, {size, 4}, {name_size, 2}, {0, 2}}, &common);
  Append({{kFileHeader, 4}}, &files_);
  ((files_ += common) += name) += data;
  Append({{kDirectoryEntry, 4}, {kVersion, 2}}, &directory_);
  directory_ += common;
  // No comment; disk, internal and external attributes.
  Append({{0, 2}, {0, 2}, {0, 2}, {0, 4}, {offset, 4}}, &directory_);
  directory_ += name;
  ++count_;
}

std::string ZipArchive::Finish() {
  std::string all = std::move(files_);
  const auto offset = static_cast<uint32_t>(all.size()),
             size = static_cast<uint32_t>(directory_.size());
  all += directory_;
  // Of disk 0; no comment.
  Append({{kDirectoryEnd, 4},
          {0, 2},
          {0, 2},
          {count_, 2},
          {count_, 2},
          {size, 4},
          {offset, 4},
          {0, 2}},
         &all);
  return all;
}

}  // namespace polysketch
