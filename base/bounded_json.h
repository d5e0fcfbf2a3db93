// JSON from outside. The program reads JSON that it did not write itself by ParseJson alone: within
// a depth, because the library copies, compares and prints values by recursion, and without more
// memory than what it returns takes. Never throws.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace polysketch {

// Arrays and objects of a client that contain each other.
inline constexpr int kMaxJsonDepth = 100;

// The names that lead from an object to a member of its members.
using JsonPath = std::vector<std::string>;

struct JsonLimits {
  int max_depth = kMaxJsonDepth;
  bool unique_keys = false;  // false: of equal keys of an object, the last one counts
  // Objects that become a string: their text, whose numbers keep their digits, without white space
  // between its parts.
  std::span<const JsonPath> as_text = {};
};

// Parses `text`, one value with white space around it. INVALID_ARGUMENT for text that is no JSON,
// that nests deeper than the limit, that has a number out of the range of double, or a key twice if
// `limits` forbids that. An integer that does not fit in 64 bits becomes a double. Json:
// nlohmann::json, or nlohmann::ordered_json, which keeps the order of keys. Takes no more time than
// sorting the text.
template <typename Json = nlohmann::json>
Result<Json> ParseJson(std::string_view text, JsonLimits limits = {});

extern template Result<nlohmann::json> ParseJson(std::string_view, JsonLimits);
extern template Result<nlohmann::ordered_json> ParseJson(std::string_view, JsonLimits);

// The memory that ParseJson(text) takes at most, in either form. Reads the text once.
int64_t ParsedJsonBytes(std::string_view text);

// At most `most` bytes of a text from outside, then "...", for error messages.
std::string Abbreviate(std::string_view text, size_t most = 100);

}  // namespace polysketch
