// JSON that grows as text is that of a tree.
#include "server/openai/growing_json.h"

#include "base/status.h"
#include "gtest/gtest.h"
#include "server/http/json_text.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

TEST(GrowingJson, ElementsAreThoseOfOneArray) {
  std::string text = "[";
  for (const char* const more : {"", "1", "", "\"[\"", "{},null"}) AppendElements(more, &text);
  EXPECT_EQ(text, "[1,\"[\",{},null");
  std::string elements;
  for (const char* const more : {"", "1", "2"}) AppendElements(more, &elements);
  EXPECT_EQ(elements, "1,2");
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
