// Operations on text. Each result keeps the marks of the bytes that it is made of.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/chat/budget.h"
#include "server/chat/value.h"

namespace polysketch::chat {

void AppendUtf8(char32_t code, std::string* out);
// As Python's str.isprintable of one character.
bool IsPrintable(char32_t c);

// Where `wanted` begins in `text`, at or after `begin`; npos without it. The time is linear in
// both, whatever they hold.
size_t FindText(std::string_view text, std::string_view wanted, size_t begin);
// The last place where `wanted` begins and ends at or before `end`.
size_t FindLastText(std::string_view text, std::string_view wanted, size_t end);

// Whether every character is one of a class, and there is one.
enum class CharacterClass { kSpace, kLetter, kLetterOrDigit, kDigit, kAscii };
bool AllCharacters(std::string_view text, CharacterClass wanted);

// `characters` null: white space, as Python's str.isspace.
MarkedText Stripped(const MarkedText& text, const std::string* characters, bool left, bool right);
// `count` below 0: all. An empty `from` is before each character and at the end.
Result<MarkedText> Replaced(const MarkedText& text, const MarkedText& from, const MarkedText& to,
                            int64_t count, Budget* budget);
// `separator` null: at white space. `limit` below 0: no limit.
Result<List> Split(const MarkedText& text, const std::string* separator, int64_t limit,
                   bool from_right, Budget* budget);
// The lines, without their ends unless `keep_ends`.
Result<List> SplitLines(const MarkedText& text, bool keep_ends, Budget* budget);
Result<MarkedText> Joined(const List& list, const MarkedText& separator, Budget* budget);
// Python's text[begin:end:step], in characters; parts are those of the language.
Result<MarkedText> CharacterSlice(const MarkedText& text, const int64_t* begin, const int64_t* end,
                                  int64_t step, Budget* budget);
// Where Python's slice with these parts begins and ends, in a sequence of `size` elements.
struct Span {
  int64_t begin, end;
};
Span SliceSpan(const int64_t* begin, const int64_t* end, int64_t step, int64_t size);

enum class LetterCase {
  kUpper,
  kLower,
  kSwapped,
  kCapitalized,
  kTitle,       // of the method: a word is a row of letters
  kTitleWords,  // of the filter: a word follows a space, a hyphen or an opening bracket
};
Result<MarkedText> InCase(const MarkedText& text, LetterCase letter_case, Budget* budget);

// The text with "&", "<", ">" and quotes as HTML has them.
Result<MarkedText> Escaped(const MarkedText& text, Budget* budget);

// Python's text % values: `values` a tuple, a dict or one value.
Result<MarkedText> PercentFormat(const MarkedText& text, const Value& values, Budget* budget);

}  // namespace polysketch::chat
