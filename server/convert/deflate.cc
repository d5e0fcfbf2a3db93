#include "server/convert/deflate.h"

#include <zlib.h>

#include "base/check.h"

namespace polysketch {

std::string Deflated(std::string_view content, int level, bool gzip) {
  constexpr int kGzip = 16;  // added to the bits of the window
  z_stream stream{};
  int result = deflateInit2(&stream, level, Z_DEFLATED, gzip ? MAX_WBITS + kGzip : -MAX_WBITS,
                            MAX_MEM_LEVEL, Z_DEFAULT_STRATEGY);
  PS_CHECK(result == Z_OK) << "zlib: " << result;
  std::string out(deflateBound(&stream, content.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  result = deflate(&stream, Z_FINISH);
  PS_CHECK(result == Z_STREAM_END) << "zlib: " << result;
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace polysketch
