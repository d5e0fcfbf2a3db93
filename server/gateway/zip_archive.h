// A zip archive in memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace polysketch {

// Deflates files. The bytes depend on names and contents alone. Names and contents are below 4 GiB,
// and so is the archive.
class ZipArchive {
 public:
  void Add(std::string_view name, std::string_view content);
  // Returns the archive. Called once, last.
  std::string Finish();

 private:
  std::string files_;
  std::string directory_;
  uint16_t count_ = 0;
};

}  // namespace polysketch
