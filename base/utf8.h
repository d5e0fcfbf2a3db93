// UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace polysketch {

struct Utf8Char {
  enum class Kind {
    kValid,       // `length` bytes are one character, `code_point`
    kIncomplete,  // the text ends inside a character that may still become valid: `length` bytes
                  // are there
    kInvalid,  // `length` bytes are a maximal subpart of an ill-formed sequence: one U+FFFD stands
               // for them
  };
  Kind kind = Kind::kInvalid;
  int length = 0;
  char32_t code_point = 0;
};

// What the text begins with. `text` is not empty.
Utf8Char DecodeUtf8(std::string_view text);

// Bytes of the longest prefix that is whole valid characters. Equal to text.size() when all of it
// is valid.
size_t ValidUtf8Prefix(std::string_view text);

// Whether it is the beginning of a character whose end is missing, or empty.
bool IsUtf8Beginning(std::string_view tail);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace polysketch
