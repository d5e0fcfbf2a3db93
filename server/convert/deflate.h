// Deflate (RFC 1951), alone or as gzip.
#pragma once

#include <string>
#include <string_view>

namespace polysketch {

// The compressed bytes, which depend on the arguments alone. `level`: of zlib. `gzip`: with the
// header and the checksum of gzip.
std::string Deflated(std::string_view content, int level, bool gzip);

}  // namespace polysketch
