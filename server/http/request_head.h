// The head of a request: the request line, the fields and the empty line after them, as RFC 9112
// has them. Boost.Beast parses it; what Beast takes beyond the RFC is refused here, because another
// program that reads the same bytes (a proxy, a cache) may find other requests in them.
#pragma once

#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace polysketch {

// Finds the end of a head in bytes that arrive in parts.
class HeadScanner {
 public:
  explicit HeadScanner(int64_t max_bytes = 0) : max_bytes_(max_bytes) {}

  // The size of the head that `bytes` begin with; 0: they have a part of it. `bytes` begin with
  // those of the last call. MALFORMED_REQUEST for a line that does not end with CRLF, one that
  // continues another, and control characters; TARGET_TOO_LONG, HEADER_TOO_LARGE.
  Result<size_t> Find(std::string_view bytes);

 private:
  int64_t max_bytes_;
  size_t scanned_ = 0;
  size_t line_ = 0;  // where the line begins that has not ended
};

using BeastRequest = boost::beast::http::request<boost::beast::http::string_body>;

// Checks what says where a request ends and whom it is for: Host, Content-Length,
// Transfer-Encoding, the number of fields. After an error nothing is known of the bytes that follow
// the head.
Status CheckFraming(const BeastRequest& head, int64_t max_fields);

// What a request is for.
struct RequestTarget {
  std::string path;                      // as DecodedPath has it; "*" for OPTIONS *
  std::string query;                     // as it came
  std::optional<std::string> authority;  // of an absolute target: it stands for the field Host
};

// MALFORMED_REQUEST for a target that names no path.
Result<RequestTarget> ParseTarget(std::string_view method, std::string_view target);

// The size that Content-Length says, after CheckFraming; nullopt without the field.
std::optional<uint64_t> ContentLength(const BeastRequest& head);

// Whether no text of HTTP has the character.
bool IsControl(char c);

// Errors of heads.
Status MalformedRequest(const std::string& message);
Status HeaderTooLarge(int64_t max_bytes);

}  // namespace polysketch
