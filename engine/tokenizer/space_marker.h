// What stands for a space in the pieces of SentencePiece and of the tokenizers that took its form.
#pragma once

#include <string_view>

namespace polysketch {

inline constexpr std::string_view kSpaceMarker = "\xE2\x96\x81";  // U+2581

}  // namespace polysketch
