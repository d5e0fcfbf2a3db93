#pragma once

#include <cstddef>
#include <string_view>

#include "base/status.h"

namespace polysketch {

// Length of the longest prefix of `text` that is whole, well-formed UTF-8 characters (Unicode 15,
// table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF).
size_t Utf8PrefixLength(std::string_view text);

// Whether `tail`, at most 3 bytes, may be the beginning of a character whose end has not arrived.
bool IsUtf8Beginning(std::string_view tail);

// INVALID_ARGUMENT that names the first byte that is not UTF-8; what: "--prompt".
Status CheckUtf8(std::string_view what, std::string_view text);

}  // namespace polysketch
