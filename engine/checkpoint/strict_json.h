// JSON of untrusted files, read strictly: no duplicate keys, no deep nesting, nothing after the
// value. Never throws.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/bounded_json.h"
#include "base/status.h"
#include "engine/checkpoint/model_folder.h"

namespace polysketch {

inline constexpr char kConfigFile[] = "config.json";

// Parses `text` by ParseJson, without duplicate keys. The message of an error begins with `what` (a
// file name).
Result<nlohmann::json> ParseStrictJson(std::string_view text, std::string_view what, int max_depth);

// Reads a file of at most `max_bytes` bytes and parses it as ParseStrictJson does.
Result<nlohmann::json> ReadStrictJson(const ModelFolder& folder, const std::string& name,
                                      size_t max_bytes, int max_depth);

// The same of kConfigFile, within its limits.
Result<nlohmann::json> ParseConfigJson(std::string_view text, std::string_view what);
Result<nlohmann::json> ReadConfigJson(const ModelFolder& folder);

// Describes a value for error messages: "the string \"abc\"", "the number 7", "an object". Strings
// are abbreviated, arrays and objects are not printed.
std::string DescribeJson(const nlohmann::json& value);

}  // namespace polysketch
