// The ids that a client may send with a request.
#pragma once

#include <string>
#include <string_view>

namespace polysketch {

// The header, and the key of metadata, of the id of a request.
inline constexpr char kRequestIdKey[] = "x-request-id";

// Whether `text` is 1 to 128 characters of [A-Za-z0-9._:-].
bool IsRequestId(std::string_view text);
// Returns a random id: "ps-" and 16 hexadecimal digits.
std::string NewRequestId();
// W3C Trace Context: 2, 32, 16 and 2 lower-case hexadecimal digits with dashes between, version not
// ff, ids not zero.
bool IsTraceparent(std::string_view text);

}  // namespace polysketch
