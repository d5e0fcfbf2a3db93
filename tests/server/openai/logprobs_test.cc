#include "server/openai/logprobs.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "tests/server/rpc/fake_tokenizer.h"

namespace polysketch {
namespace {

using testing::FakeTokenizer;
using Offsets = std::vector<int64_t>;

const FakeTokenizer kTokenizer;
constexpr auto kCompletion = Logprobs::Form::kCompletion;

// The ids of bytes: FakeTokenizer has one for each.
std::vector<int32_t> Ids(const std::string& bytes) {
  std::vector<int32_t> ids;
  for (const char c : bytes) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

v1::Delta DeltaOf(const std::vector<int32_t>& ids) {
  v1::Delta delta;
  for (const int32_t id : ids) {
    delta.add_tokens(id);
    delta.add_logprobs()->set_logprob(-1);
  }
  return delta;
}

Offsets Take(Logprobs* logprobs) {
  return nlohmann::json::parse(logprobs->Take()).at("text_offset").get<Offsets>();
}

Offsets OffsetsOf(const std::vector<int32_t>& ids, const v1::CompleteRequest& request = {}) {
  Logprobs logprobs(kCompletion, &kTokenizer, TextDecoder(&kTokenizer, request));
  logprobs.Add(DeltaOf(ids));
  return Take(&logprobs);
}

TEST(Logprobs, OffsetsCountCharacters) {
  EXPECT_EQ(OffsetsOf(Ids("abc")), Offsets({0, 1, 2}));
  // U+1F600 is of four tokens, each of which is inside of it.
  EXPECT_EQ(OffsetsOf(Ids("a\xf0\x9f\x98\x80"
                          "b")),
            Offsets({0, 1, 1, 1, 1, 2}));
  EXPECT_EQ(OffsetsOf(Ids("\xc3\xa4z")), Offsets({0, 0, 1}));
  // Bytes that become U+FFFD.
  EXPECT_EQ(OffsetsOf(Ids("\xf0"
                          "b")),
            Offsets({0, 1}));
  EXPECT_EQ(OffsetsOf(Ids("\xf0\x9f\xf0\x9f\x98\x80"
                          "b")),
            Offsets({0, 0, 1, 1, 1, 1, 2}));
  EXPECT_EQ(OffsetsOf(Ids("\x80\x80z")), Offsets({0, 1, 2}));
  // Control tokens have no text.
  EXPECT_EQ(OffsetsOf({'a', 257, 0xc3, 257, 0xa4, 'b'}), Offsets({0, 1, 1, 1, 1, 2}));
}

TEST(Logprobs, OffsetsOfAStreamContinue) {
  Logprobs logprobs(kCompletion, &kTokenizer, TextDecoder(&kTokenizer, {}));
  logprobs.Add(DeltaOf(Ids("a\xf0\x9f")));
  EXPECT_EQ(Take(&logprobs), Offsets({0, 1, 1}));
  logprobs.Add(
      DeltaOf(Ids("\x98\x80"
                  "b")));
  EXPECT_EQ(Take(&logprobs), Offsets({1, 1, 2}));
}

// A prompt of ids may end inside a character. The output begins with the whole one.
TEST(Logprobs, OffsetsAfterAPromptThatEndsInsideACharacter) {
  v1::CompleteRequest request;
  for (const int32_t id : Ids("x\xf0\x9f")) request.mutable_prompt()->mutable_tokens()->add_ids(id);
  EXPECT_EQ(OffsetsOf(Ids("\x98\x80"
                          "b"),
                      request),
            Offsets({0, 0, 1}));
  EXPECT_EQ(OffsetsOf(Ids("bc"), request), Offsets({1, 2}));
  request.set_echo(true);
  EXPECT_EQ(OffsetsOf(Ids("x\xf0\x9f\x98\x80"
                          "b"),
                      request),
            Offsets({0, 1, 1, 1, 1, 2}));
}

// Against the text of all bytes at once: a token is at the character that holds its first byte.
TEST(Logprobs, OffsetsAreThoseOfTheWholeText) {
  std::mt19937 random(1);
  const std::string bytes[] = {"a",    "\xc3", "\xa4", "\xe6\xbc\xa2", "\xf0",
                               "\x9f", "\x98", "\x80", "\xe2\x82"};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    while (text.size() < 24) text += bytes[random() % std::size(bytes)];
    Offsets expected;
    int64_t character = 0;
    for (std::string_view rest = text; !rest.empty(); ++character) {
      const auto size = static_cast<size_t>(DecodeUtf8(rest).length);
      expected.insert(expected.end(), size, character);
      rest.remove_prefix(size);
    }
    EXPECT_EQ(OffsetsOf(Ids(text)), expected) << round;
  }
}

TEST(Logprobs, ChatTokensHaveTheirBytes) {
  Logprobs logprobs(Logprobs::Form::kChat, &kTokenizer, TextDecoder(&kTokenizer, {}));
  logprobs.Add(DeltaOf({'a', 0xf0, 257}));
  const auto content = nlohmann::json::parse(logprobs.Take()).at("content");
  EXPECT_EQ(content.at(0).at("bytes"), std::vector<int>({'a'}));
  EXPECT_EQ(content.at(1).at("token"), "bytes:\\xf0");
  EXPECT_EQ(content.at(1).at("bytes"), std::vector<int>({0xf0}));
  EXPECT_TRUE(content.at(2).at("bytes").empty());
}

// What is taken in parts, after what an echo has, is what is taken at once.
TEST(Logprobs, PartsAreThoseOfTheWhole) {
  v1::Delta delta = DeltaOf(Ids("a\",[]"));
  delta.mutable_logprobs(0)->clear_logprob();
  auto* const top = delta.mutable_logprobs(1)->add_top();
  top->set_token('"');
  top->set_logprob(-0.5);
  for (const auto form : {kCompletion, Logprobs::Form::kChat}) {
    Logprobs whole(form, &kTokenizer, TextDecoder(&kTokenizer, {}));
    EXPECT_GT(whole.Add(delta), 0);
    EXPECT_GT(whole.Add(delta), 0);
    Logprobs parts(form, &kTokenizer, TextDecoder(&kTokenizer, {}));
    parts.Add(delta);
    const LogprobColumns first = parts.TakeColumns();
    const std::string none = parts.Take();
    parts.Add(delta);
    const std::string text = parts.Take(first);
    EXPECT_EQ(text, whole.Take());
    EXPECT_TRUE(nlohmann::json::accept(text)) << text;
    EXPECT_EQ(none, form == kCompletion
                        ? R"({"tokens":[],"token_logprobs":[],"top_logprobs":[],"text_offset":[]})"
                        : R"({"content":[],"refusal":null})");
  }
}

TEST(Logprobs, WithoutATokenizer) {
  Logprobs logprobs(kCompletion, nullptr, TextDecoder(nullptr, {}));
  logprobs.Add(DeltaOf({5, 6}));
  EXPECT_EQ(Take(&logprobs), Offsets({0, 0}));
}

}  // namespace
}  // namespace polysketch
