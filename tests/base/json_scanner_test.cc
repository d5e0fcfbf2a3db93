#include "base/json_scanner.h"

#include <random>
#include <string>

#include "gtest/gtest.h"

namespace polysketch {
namespace {

using Place = JsonScanner::Place;

// The place after the text.
Place PlaceAfter(const std::string& text, int max_depth = kMaxJsonDepth) {
  JsonScanner scanner(max_depth);
  for (const char c : text) scanner.Take(c);
  return scanner.place();
}

TEST(JsonScanner, SaysWhereItIs) {
  EXPECT_EQ(PlaceAfter(""), Place::kValue);
  EXPECT_EQ(PlaceAfter("{"), Place::kFirstKey);
  EXPECT_EQ(PlaceAfter("{\"a"), Place::kKeyString);
  EXPECT_EQ(PlaceAfter("{\"a\\\""), Place::kKeyString);
  EXPECT_EQ(PlaceAfter("{\"a\" "), Place::kColon);
  EXPECT_EQ(PlaceAfter("{\"a\":"), Place::kValue);
  EXPECT_EQ(PlaceAfter("{\"a\":\"\\u00"), Place::kString);
  EXPECT_EQ(PlaceAfter("{\"a\":-1.5e"), Place::kScalar);
  EXPECT_EQ(PlaceAfter("{\"a\":true"), Place::kAfterValue);
  EXPECT_EQ(PlaceAfter("{\"a\":[]"), Place::kAfterValue);
  EXPECT_EQ(PlaceAfter("{\"a\":1,"), Place::kKey);
  EXPECT_EQ(PlaceAfter("[1,"), Place::kValue);
  EXPECT_EQ(PlaceAfter("{\"a\":1}"), Place::kEnd);
  EXPECT_EQ(PlaceAfter("{\"a\":1} "), Place::kEnd);
  EXPECT_EQ(PlaceAfter("{\"a\":1}x"), Place::kError);
  EXPECT_EQ(PlaceAfter("{} {}"), Place::kError);
}

TEST(JsonScanner, DepthIsBounded) {
  EXPECT_EQ(PlaceAfter("[[[]]]", 3), Place::kEnd);
  EXPECT_EQ(PlaceAfter("[[[[", 3), Place::kError);
  EXPECT_EQ(PlaceAfter(std::string(1'000'000, '[')), Place::kError);
}

// What it accepts is what ParseJson accepts: texts of few bytes, of which many are nearly JSON.
TEST(JsonScanner, AcceptsWhatTheParserAccepts) {
  const std::string parts[] = {
      "{",    "}",     "[",    "]",   ",",  ":",  "\"a\"", "\"\\n\\u0041\"",
      "\"\\", "\"",    "-",    "0",   "12", ".",  "e",     "E+1",
      "true", "false", "null", "tru", " ",  "\n", "\x01"};
  std::mt19937 random(1);
  int accepted = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string text(1, random() % 2 == 0 ? '{' : '[');
    for (size_t count = random() % 8; count > 0; --count)
      text += parts[random() % std::size(parts)];
    if (random() % 2 == 0) text += text[0] == '{' ? '}' : ']';
    const bool expected = ParseJson(text).ok();
    ASSERT_EQ(PlaceAfter(text) == Place::kEnd, expected) << text;
    accepted += expected ? 1 : 0;
  }
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace polysketch
