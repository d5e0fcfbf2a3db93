#include "server/credentials/api_keys.h"

#include <gtest/gtest.h>

namespace polysketch {
namespace {

// Of "abc", from FIPS 180-2.
constexpr char kHash[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr char kOther[] = "BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AE";

std::string Line(const std::string& fields) {
  return StrCat(R"({"name": "a", "sha256": ")", kHash, R"(", "tenant": "t")", fields, "}\n");
}

std::string ErrorOfText(const std::string& text) {
  const auto keys = ParseApiKeys(text);
  if (keys.ok()) return "no error";
  EXPECT_EQ(keys.status().code(), Code::kInvalidArgument);
  return keys.status().message();
}

TEST(ApiKeys, Fields) {
  const auto keys = ParseApiKeys(
      Line(R"(, "max_priority": 3, "requests_per_minute": 60, "tokens_per_minute": 100000)") +
      "\n  \r\n" + StrCat(R"({"tenant": "u", "sha256": ")", kOther, R"(", "name": "b"})"));
  ASSERT_TRUE(keys.ok()) << keys.status().ToString();
  ASSERT_EQ(keys->size(), 2U);
  EXPECT_EQ(keys->at(0).name, "a");
  EXPECT_EQ(keys->at(0).tenant, "t");
  EXPECT_EQ(keys->at(0).sha256, Sha256Of("abc"));
  EXPECT_EQ(keys->at(0).max_priority, 3);
  EXPECT_EQ(keys->at(0).requests_per_minute, 60);
  EXPECT_EQ(keys->at(0).tokens_per_minute, 100000);
  EXPECT_EQ(keys->at(1).max_priority, std::nullopt);
  EXPECT_EQ(keys->at(1).requests_per_minute, 0);
  EXPECT_EQ(keys->at(1).tokens_per_minute, 0);
}

TEST(ApiKeys, ErrorsNameLineAndField) {
  EXPECT_EQ(ErrorOfText("\n"), "expected a JSON object a line, found no line");
  EXPECT_EQ(ErrorOfText("\n[1]"), "line 2: expected a JSON object");
  EXPECT_TRUE(ErrorOfText(Line("").substr(0, 20))
                  .starts_with("line 1: expected JSON, found an error at byte "));
  EXPECT_EQ(ErrorOfText(std::string(131'000, '[')),
            "line 1: expected at most 100 levels of arrays and objects, found more");
  EXPECT_EQ(ErrorOfText(R"({"sha256": 1})"), "line 1: name: expected a string, found none");
  EXPECT_EQ(ErrorOfText(R"({"name": "a", "sha256": "abc", "tenant": "t"})"),
            "line 1: sha256: expected 64 hexadecimal digits, found a string of 3 characters");
  EXPECT_EQ(ErrorOfText(StrCat(R"({"name": "a", "sha256": ")", kHash, R"(", "tenant": "a b"})")),
            "line 1: tenant: expected 1 to 128 characters of [A-Za-z0-9._:-], found a string of 3 "
            "characters");
  EXPECT_EQ(ErrorOfText(Line(R"(, "tokens_per_minute": 0)")),
            "line 1: tokens_per_minute: expected an integer from 1 to 281474976710656, found 0");
  EXPECT_EQ(
      ErrorOfText(Line(R"(, "requests_per_minute": 1.5)")),
      "line 1: requests_per_minute: expected an integer from 1 to 281474976710656, found 1.5");
  EXPECT_EQ(ErrorOfText(Line(R"(, "requests_per_minute": 18446744073709551615)")),
            "line 1: requests_per_minute: expected an integer from 1 to 281474976710656, found "
            "18446744073709551615");
  EXPECT_EQ(ErrorOfText(Line(R"(, "max_priority": -1)")),
            "line 1: max_priority: expected an integer from 0 to 1000, found -1");
  EXPECT_EQ(ErrorOfText(Line(R"(, "max_prioritty": 1)")),
            "line 1: max_prioritty: expected name, sha256, tenant, max_priority, "
            "requests_per_minute or tokens_per_minute, found an unknown field");
  EXPECT_EQ(ErrorOfText(Line(R"(, "max_priority": [1])")),
            "line 1: max_priority: expected an integer from 0 to 1000, found an array");
  EXPECT_EQ(ErrorOfText(Line(R"(, "tenant": "u")")), "line 1: key \"tenant\" appears twice");
}

TEST(ApiKeys, NamesAndKeysAreUnique) {
  EXPECT_EQ(ErrorOfText(Line("") +
                        StrCat(R"({"name": "a", "sha256": ")", kOther, R"(", "tenant": "t"})")),
            "line 2: name: expected another than in a line before, found a");
  EXPECT_EQ(
      ErrorOfText(Line("") + StrCat(R"({"name": "b", "sha256": ")", kHash, R"(", "tenant": "t"})")),
      "line 2: sha256: expected another than in a line before, found that of a");
}

}  // namespace
}  // namespace polysketch
