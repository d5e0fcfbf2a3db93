// JSON from outside, beside the library's own parser: the same value, or an error where the library
// has one too or where a limit is exceeded.
#include "base/bounded_json.h"

#include <algorithm>

#include "tests/fuzz/fuzz.h"

namespace polysketch {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Of text that is JSON: levels of arrays and objects, and the characters of the longest number.
struct Extent {
  int depth = 0;
  size_t number = 0;
};

Extent ExtentOf(std::string_view text) {
  Extent extent;
  int depth = 0;
  size_t number = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
      continue;
    }
    in_string = c == '"';
    if (c == '[' || c == '{') extent.depth = std::max(extent.depth, ++depth);
    if (c == ']' || c == '}') --depth;
    const bool of_number =
        (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
    number = of_number ? number + 1 : 0;
    extent.number = std::max(extent.number, number);
  }
  return extent;
}

// What the library takes beside JSON: a mark at the beginning, and anything after a zero.
bool IsMoreThanJson(std::string_view text) {
  return text.starts_with("\xEF\xBB\xBF") || text.find('\0') != text.npos;
}

constexpr size_t kMaxNumber = 4096;

void Check(std::string_view text) {
  const Result<json> ours = ParseJson(text);
  const json theirs = json::parse(text, nullptr, /*allow_exceptions=*/false);
  PS_CHECK(ParsedJsonBytes(text) >= 0);
  if (!ours.ok()) {
    fuzz::CheckError(ours.status());
    if (theirs.is_discarded() || IsMoreThanJson(text)) return;
    const Extent extent = ExtentOf(text);
    PS_CHECK(extent.depth > kMaxJsonDepth || extent.number > kMaxNumber)
        << ours.status().ToString();
    return;
  }
  PS_CHECK(!theirs.is_discarded() && *ours == theirs);
  PS_CHECK(ExtentOf(text).depth <= kMaxJsonDepth);
  const Result<ordered_json> ordered = ParseJson<ordered_json>(text);
  PS_CHECK(ordered.ok()) << ordered.status().ToString();
  PS_CHECK(json::parse(ordered->dump()) == json::parse(ours->dump()));
  const Result<json> unique = ParseJson(text, {.unique_keys = true});
  if (unique.ok()) PS_CHECK(*unique == *ours);
}

}  // namespace
}  // namespace polysketch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  polysketch::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
