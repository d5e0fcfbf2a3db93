// JSON that grows as text is that of a tree.
#include "server/openai/growing_json.h"

#include "base/status.h"
#include "gtest/gtest.h"
#include "server/http/json_text.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

Json Part(int first, int count) {
  Json part = {{"tokens", Json::array()}, {"logprobs", Json::array()}, {"refusal", nullptr}};
  for (int i = first; i < first + count; ++i) {
    part["tokens"].push_back(StrCat("t\"[", i, "],"));
    part["logprobs"].push_back({{"a", -0.5f * static_cast<float>(i)}, {"b", nullptr}});
  }
  return part;
}

std::string Text(const GrowingObject& first, const GrowingObject& second) {
  std::string text;
  second.AppendTo(first, &text);
  return text;
}

TEST(GrowingJson, IsTheTextOfTheWhole) {
  GrowingObject first, second;
  EXPECT_TRUE(second.empty());
  second.Add(Part(0, 0));
  EXPECT_EQ(Text(first, second), JsonText(Part(0, 0)));
  first.Add(Part(0, 0));
  first.Add(Part(0, 3));
  EXPECT_EQ(Text(first, second), JsonText(Part(0, 3)));
  second.Add(Part(3, 1));
  second.Add(Part(4, 2));
  EXPECT_EQ(Text(first, second), JsonText(Part(0, 6)));
  EXPECT_EQ(Text(GrowingObject(), second), JsonText(Part(3, 3)));
  EXPECT_GE(first.bytes() + second.bytes(), std::ssize(Text(first, second)));
  second.Clear();
  EXPECT_EQ(Text(first, second), JsonText(Part(0, 3)));
}

TEST(GrowingJson, AMemberIsFoundBehindTextThatLooksLikeIt) {
  const Json object = {{"a", "\"choices\":[]"}, {"choices", Json::array()}, {"z", 1}};
  EXPECT_EQ(WithMember(object, "choices", "[1,2]"),
            R"({"a":"\"choices\":[]","choices":[1,2],"z":1})");
}

TEST(GrowingJson, EscapedBytesAreThoseOfTheText) {
  std::string text;
  for (int c = 0; c < 128; ++c) {
    text += static_cast<char>(c);
    EXPECT_EQ(EscapedBytes(text), std::ssize(JsonText(Json(text))) - 2) << c;
  }
  text = "\xc3\xa4\xf0\x9f\x98\x80";
  EXPECT_EQ(EscapedBytes(text), 6);
}

}  // namespace
}  // namespace polysketch
