// JSON of untrusted files, read strictly: no duplicate keys, no deep nesting, nothing after the
// value. Never throws.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace polysketch {

// Parses `text`; `what` (a file name) begins every error message. Values nested deeper than
// `max_depth` arrays and objects are refused before they are stored.
Result<nlohmann::json> ParseStrictJson(std::string_view text, std::string_view what, int max_depth);

// The whole of a regular file of at most `max_bytes` bytes, parsed as above.
Result<nlohmann::json> ReadStrictJson(const std::string& path, size_t max_bytes, int max_depth);

// A name from an untrusted file, for messages: at most `most` bytes of it, then "...".
std::string Abbreviate(std::string_view name, size_t most = 100);

// What a value is, for messages: "a string", "the number 7", "an object" ...; long values are
// named, not printed.
std::string DescribeJson(const nlohmann::json& value);

}  // namespace polysketch
