#include "server/gateway/zip_archive.h"

#include <zlib.h>

#include <utility>

#include "base/check.h"

namespace polysketch {
namespace {

constexpr uint32_t kFileHeader = 0x04034b50;
constexpr uint32_t kDirectoryEntry = 0x02014b50;
constexpr uint32_t kDirectoryEnd = 0x06054b50;
constexpr uint16_t kVersion = 20;  // the first with deflate
constexpr uint16_t kDeflate = 8;
constexpr uint16_t kDay = (1 << 5) | 1;  // 1 January 1980, the first that the format can say

void Append16(uint16_t value, std::string* to) {
  to->push_back(static_cast<char>(value & 0xff));
  to->push_back(static_cast<char>(value >> 8));
}

void Append32(uint32_t value, std::string* to) {
  Append16(static_cast<uint16_t>(value & 0xffff), to);
  Append16(static_cast<uint16_t>(value >> 16), to);
}

std::string Deflate(std::string_view content) {
  z_stream stream{};
  PS_CHECK(deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -MAX_WBITS, MAX_MEM_LEVEL,
                        Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, content.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  PS_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace

void ZipArchive::Add(std::string_view name, std::string_view content) {
  const auto offset = static_cast<uint32_t>(files_.size());
  const std::string data = Deflate(content);
  std::string common;  // of the header of the file and of its entry in the directory
  Append16(kVersion, &common);
  Append16(0, &common);  // flags
  Append16(kDeflate, &common);
  Append16(0, &common);  // time
  Append16(kDay, &common);
  Append32(static_cast<uint32_t>(
               crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size())),
           &common);
  Append32(static_cast<uint32_t>(data.size()), &common);
  Append32(static_cast<uint32_t>(content.size()), &common);
  Append16(static_cast<uint16_t>(name.size()), &common);
  Append16(0, &common);  // extra fields

  Append32(kFileHeader, &files_);
  files_ += common;
  files_ += name;
  files_ += data;

  Append32(kDirectoryEntry, &directory_);
  Append16(kVersion, &directory_);
  directory_ += common;
  Append16(0, &directory_);  // comment
  Append16(0, &directory_);  // disk
  Append16(0, &directory_);  // internal attributes
  Append32(0, &directory_);  // external attributes
  Append32(offset, &directory_);
  directory_ += name;
  ++count_;
}

std::string ZipArchive::Finish() {
  std::string all = std::move(files_);
  const auto offset = static_cast<uint32_t>(all.size());
  all += directory_;
  Append32(kDirectoryEnd, &all);
  Append16(0, &all);  // this disk
  Append16(0, &all);  // disk of the directory
  Append16(count_, &all);
  Append16(count_, &all);
  Append32(static_cast<uint32_t>(directory_.size()), &all);
  Append32(offset, &all);
  Append16(0, &all);  // comment
  return all;
}

}  // namespace polysketch
