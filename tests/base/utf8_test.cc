#include "base/utf8.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace polysketch {
namespace {

using Kind = Utf8Char::Kind;

std::string EncodeCodePoint(char32_t c) {
  const auto byte = [](char32_t b) { return static_cast<char>(static_cast<unsigned char>(b)); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | c >> 6), byte(0x80 | (c & 0x3F))};
  if (c < 0x10000)
    return {byte(0xE0 | c >> 12), byte(0x80 | (c >> 6 & 0x3F)), byte(0x80 | (c & 0x3F))};
  return {byte(0xF0 | c >> 18), byte(0x80 | (c >> 12 & 0x3F)), byte(0x80 | (c >> 6 & 0x3F)),
          byte(0x80 | (c & 0x3F))};
}

TEST(Utf8Test, EveryCodePoint) {
  for (char32_t c = 0; c < 0x110000 + 0x1000; ++c) {
    const std::string text = EncodeCodePoint(c);
    const Utf8Char found = DecodeUtf8(text);
    const bool legal = c < 0x110000 && (c < 0xD800 || c > 0xDFFF);
    ASSERT_EQ(found.kind == Kind::kValid, legal) << std::hex << static_cast<uint32_t>(c);
    if (!legal) continue;
    ASSERT_EQ(found.code_point, c);
    ASSERT_EQ(found.length, static_cast<int>(text.size()));
    for (size_t n = 1; n < text.size(); ++n) {
      const Utf8Char part = DecodeUtf8(std::string_view(text).substr(0, n));
      ASSERT_EQ(part.kind, Kind::kIncomplete);
      ASSERT_EQ(part.length, static_cast<int>(n));
    }
  }
}

TEST(Utf8Test, WholeCharacters) {
  EXPECT_EQ(WholeCharacters(""), "");
  EXPECT_EQ(WholeCharacters("a\xC3\xA9"), "a\xC3\xA9");
  EXPECT_EQ(WholeCharacters("a\xFF"
                            "b\xE2\x82"),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD");
}

TEST(Utf8Test, OverlongFormsAreInvalid) {
  for (const std::string_view text :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF"}) {
    EXPECT_EQ(DecodeUtf8(text).kind, Kind::kInvalid);
    EXPECT_EQ(DecodeUtf8(text).length, 1);
  }
}

TEST(Utf8Test, ValidPrefix) {
  EXPECT_EQ(ValidUtf8Prefix(""), 0u);
  EXPECT_EQ(ValidUtf8Prefix("a\xE2\x82\xAC"), 4u);
  EXPECT_EQ(ValidUtf8Prefix("a\xE2\x82"), 1u);
  EXPECT_EQ(ValidUtf8Prefix("ab\xFF"
                            "c"),
            2u);
}

// The example of the Unicode standard, section 3.9, "U+FFFD Substitution of Maximal Subparts",
// table 3-11.
TEST(Utf8Test, MaximalSubparts) {
  const std::string text = "\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64";
  std::vector<int> invalid;
  size_t i = 0;
  while (i < text.size()) {
    const Utf8Char c = DecodeUtf8(std::string_view(text).substr(i));
    ASSERT_NE(c.kind, Kind::kIncomplete);
    if (c.kind == Kind::kInvalid) invalid.push_back(c.length);
    i += static_cast<size_t>(c.length);
  }
  EXPECT_EQ(invalid, (std::vector<int>{3, 2, 1, 1, 1, 1}));
}

}  // namespace
}  // namespace polysketch
