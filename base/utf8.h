// UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace polysketch {

struct Utf8Char {
  enum class Kind {
    // `length` bytes are one character, `code_point`.
    kValid,
    // The text ends after the first `length` bytes of a character that may still become valid.
    kIncomplete,
    // `length` bytes are a maximal subpart of an ill-formed sequence, which one U+FFFD replaces.
    kInvalid,
  };
  Kind kind = Kind::kInvalid;
  int length = 0;
  char32_t code_point = 0;
};

// Decodes the beginning of `text`, which is not empty.
Utf8Char DecodeUtf8(std::string_view text);

// Size in bytes of the longest prefix of whole valid characters; text.size() if all of it is valid.
size_t ValidUtf8Prefix(std::string_view text);

// Whether `tail` is empty, or the beginning of a character whose end is missing.
bool IsUtf8Beginning(std::string_view tail);

// `text` with U+FFFD in the place of each maximal subpart of an ill-formed sequence, and of
// characters whose end is missing.
std::string WholeCharacters(std::string_view text);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace polysketch
