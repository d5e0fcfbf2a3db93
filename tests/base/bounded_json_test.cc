#include "base/bounded_json.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace polysketch {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::string Repeated(std::string_view text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

TEST(BoundedJson, ErrorsSayWhere) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "expected JSON, found an error at byte 1: expected a value"},
      {"[1,]", "expected JSON, found an error at byte 4: expected a value"},
      {"[1 2]", "expected JSON, found an error at byte 4: expected , or ]"},
      {R"({"a" 1})", "expected JSON, found an error at byte 6: expected :"},
      {"{1:2}", "expected JSON, found an error at byte 2: expected a key in quotes"},
      {"1 x", "expected JSON, found an error at byte 3: expected the end of the text"},
      {std::string("1\0", 2),
       "expected JSON, found an error at byte 2: expected the end of the text"},
      {"\"\xc3\xa4\xff\"", "expected JSON, found an error at byte 4: expected UTF-8"},
      {"\"\n\"",
       "expected JSON, found an error at byte 2: expected a character or the end of the string"},
      {R"("\ud83d")", "expected JSON, found an error at byte 8: expected a low surrogate"},
      {R"("\u12g4")", "expected JSON, found an error at byte 4: expected four hexadecimal digits"},
      {"01", "expected JSON, found an error at byte 2: expected the end of the text"},
      {"-", "expected JSON, found an error at byte 2: expected a digit"},
      {"1e999", "expected numbers that fit in 64 bits, found a larger one"},
      {std::string(5000, '1'), "expected numbers of at most 4096 characters, found one of 5000"},
  };
  for (const auto& [text, error] : cases)
    EXPECT_EQ(ParseJson(text).status().message(), error) << text;
}

TEST(BoundedJson, NestingIsBounded) {
  for (const std::string_view open : {"[", "{\"a\":"}) {
    for (const bool closed : {false, true}) {
      for (const int levels : {101, 131'000, 2'000'000}) {
        const std::string text = Repeated(open, static_cast<size_t>(levels)) +
                                 (closed ? Repeated(open == "[" ? "]" : "1}", 1) : "");
        EXPECT_EQ(ParseJson(text).status().message(),
                  "expected at most 100 levels of arrays and objects, found more");
        EXPECT_FALSE(ParseJson<ordered_json>(text).ok());
      }
    }
  }
  EXPECT_TRUE(ParseJson(Repeated("[", 100) + Repeated("]", 100)).ok());
  EXPECT_FALSE(ParseJson("[[]]", {.max_depth = 1}).ok());
  EXPECT_TRUE(ParseJson("1", {.max_depth = 0}).ok());
}

TEST(BoundedJson, KeysMayBeUnique) {
  const std::string text = R"({"a": 1, "b": 2, "a": 3})";
  EXPECT_EQ(ParseJson(text)->dump(), R"({"a":3,"b":2})");
  EXPECT_EQ(ParseJson<ordered_json>(R"({"b": 1, "a": 2, "b": 3})")->dump(), R"({"b":3,"a":2})");
  EXPECT_EQ(ParseJson(text, {.unique_keys = true}).status().message(), "key \"a\" appears twice");
  EXPECT_FALSE(ParseJson<ordered_json>(text, {.unique_keys = true}).ok());
  EXPECT_TRUE(ParseJson(R"([{"a": 1}, {"a": 1}])", {.unique_keys = true}).ok());
}

TEST(BoundedJson, ObjectsBecomeTheirText) {
  const std::vector<JsonPath> paths = {{"a", "b"}, {"c"}};
  const auto parse = [&](const char* text) {
    return ParseJson<ordered_json>(text, {.as_text = paths})->dump();
  };
  EXPECT_EQ(
      parse(R"({"a": {"b": { "x" : [1.10, "a \" b"] } }, "c": [1], "b": {"c": {"y": 1.10}}})"),
      R"({"a":{"b":"{\"x\":[1.10,\"a \\\" b\"]}"},"c":[1],"b":{"c":{"y":1.1}}})");
  EXPECT_EQ(parse(R"({"a": [{"b": {}}], "\u0063": {"c": { }}})"),
            R"({"a":[{"b":{}}],"c":"{\"c\":{}}"})");
  EXPECT_EQ(parse(R"({"c": {"d": 1}, "c": {"e": 1e1}})"), R"({"c":"{\"e\":1e1}"})");
  EXPECT_EQ(parse(R"({"c": true})"), R"({"c":true})");
}

// A random value as text; sizes favour small ones.
std::string RandomText(std::mt19937* random, int depth) {
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>((*random)() % n); };
  const auto space = [&] { return std::string(below(8) == 0 ? " \n" : ""); };
  constexpr const char* kScalars[] = {"0",
                                      "-0",
                                      "17",
                                      "-9223372036854775808",
                                      "-9223372036854775809",
                                      "18446744073709551615",
                                      "18446744073709551616",
                                      "1.5",
                                      "-2.25e3",
                                      "1E-400",
                                      "5e-324",
                                      "0.1",
                                      "true",
                                      "false",
                                      "null",
                                      "\"\"",
                                      R"("\u00e4\ud83d\ude00\n\\\"\/\b\f\r\t")",
                                      "\"\xc3\xa4\xf0\x9f\x98\x80\"",
                                      "\"a text that is longer than fifteen characters\""};
  if (depth == 0 || below(3) == 0) return kScalars[below(std::size(kScalars))];
  const bool object = below(2) == 0;
  std::string text = object ? "{" : "[";
  const uint32_t count = below(5);
  for (uint32_t i = 0; i < count; ++i) {
    if (i > 0) text += "," + space();
    if (object)
      text += "\"" + std::string(1, static_cast<char>('a' + below(4))) + "\"" + space() + ":";
    text += RandomText(random, depth - 1) + space();
  }
  return text + (object ? "}" : "]");
}

// The library's own parser is the reference: for values, and for texts with a byte that is changed.
TEST(BoundedJson, AgreesWithTheLibrary) {
  std::mt19937 random(7);
  constexpr std::string_view kBytes = "[]{},:\"\\0123456789-+.eEntu \n\x01\xff\xc3";
  int good = 0;
  for (int i = 0; i < 50'000; ++i) {
    std::string text = RandomText(&random, 4);
    for (uint32_t changes = random() % 3; changes > 0 && !text.empty(); --changes) {
      const size_t at = random() % text.size();
      const char byte = kBytes[random() % kBytes.size()];
      switch (random() % 3) {
        case 0:
          text[at] = byte;
          break;
        case 1:
          text.insert(at, 1, byte);
          break;
        default:
          text.erase(at, 1);
      }
    }
    const json expected = json::parse(text, nullptr, /*allow_exceptions=*/false);
    const Result<json> found = ParseJson(text);
    const Result<ordered_json> ordered = ParseJson<ordered_json>(text);
    ASSERT_EQ(found.ok(), !expected.is_discarded()) << text << " " << found.status().ToString();
    ASSERT_EQ(ordered.ok(), found.ok());
    if (!found.ok()) continue;
    ++good;
    ASSERT_EQ(*found, expected) << text;
    ASSERT_EQ(found->dump(), expected.dump()) << text;
    ASSERT_EQ(ordered->dump(), ordered_json::parse(text).dump()) << text;
  }
  EXPECT_GT(good, 10'000);
}

// The largest sums of live bytes, by malloc_usable_size, while this program parses.
struct Peak {
  int64_t live = 0;
  int64_t most = 0;
};
thread_local Peak* measured = nullptr;

template <typename Json>
int64_t PeakOf(const std::string& text) {
  Peak peak;
  measured = &peak;
  { const Result<Json> parsed = ParseJson<Json>(text); }
  measured = nullptr;
  EXPECT_EQ(peak.live, 0);
  return peak.most;
}

TEST(BoundedJson, MemoryIsBoundedBeforeItIsTaken) {
  std::string keys = "{", longer = "{", texts = "[";
  for (int i = 0; i < 100'000; ++i) {
    keys += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":1";
    longer += (i == 0 ? "\"" : ",\"") + std::string(40, 'k') + std::to_string(i) + "\":\"" +
              std::string(20, 'v') + "\"";
    texts += (i == 0 ? "\"" : ",\"") + std::string(16, 't') + "\"";
  }
  const std::string cases[] = {
      "[" + Repeated("1,", 1 << 16) + "1]",
      "[" + Repeated("[],", 1 << 16) + "1]",
      "[" + Repeated("{},", 1 << 16) + "1]",
      "[" + Repeated("[1],", 1 << 17) + "1]",
      "[" + Repeated("\"\",", 1 << 16) + "1]",
      "[" + Repeated("{\"a\":1},", 1 << 17) + "1]",
      "[" + Repeated("{\"a\":{\"b\":[[]]}},", 1 << 16) + "1]",
      keys + "}",
      longer + "}",
      texts + "]",
      "\"" + std::string(4 << 20, 'x') + "\"",
      "\"" + std::string(4 << 20, 'x'),
      "\"" + std::string(4 << 20, 'x') + "\\q\"",
      std::string(4 << 20, '1'),
      std::string(1 << 18, '['),
      "1",
  };
  for (const std::string& text : cases) {
    const int64_t bound = ParsedJsonBytes(text);
    EXPECT_LE(PeakOf<json>(text), bound) << text.substr(0, 20);
    EXPECT_LE(PeakOf<ordered_json>(text), bound) << text.substr(0, 20);
    EXPECT_LE(bound, 8192 + 160 * std::ssize(text)) << text.substr(0, 20);
  }
}

// Before, each key was compared with all others, one by one, and values were copied as objects
// grew.
TEST(BoundedJson, ManyKeysTakeNoSquareOfTime) {
  std::string text = "{";
  for (int i = 0; i < 300'000; ++i) text += "\"" + std::to_string(i) + "\":[1],";
  const Result<ordered_json> parsed = ParseJson<ordered_json>(text + "\"x\":1}");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->size(), 300'001u);
}

}  // namespace

void CountAllocation(void* memory, int sign) {
  Peak* const peak = std::exchange(measured, nullptr);
  if (peak == nullptr) return;
  if (memory != nullptr) peak->live += sign * static_cast<int64_t>(malloc_usable_size(memory) + 8);
  peak->most = std::max(peak->most, peak->live);
  measured = peak;
}

}  // namespace polysketch

void* operator new(size_t size) {
  void* const memory = malloc(size);
  if (memory == nullptr) abort();
  polysketch::CountAllocation(memory, 1);
  return memory;
}
void operator delete(void* memory) noexcept {
  polysketch::CountAllocation(memory, -1);
  free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }
