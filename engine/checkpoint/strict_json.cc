#include "engine/checkpoint/strict_json.h"

namespace polysketch {

using nlohmann::json;

namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr int kMaxConfigDepth = 8;

}  // namespace

Result<json> ParseStrictJson(std::string_view text, std::string_view what, int max_depth) {
  Result<json> parsed = ParseJson(text, {.max_depth = max_depth, .unique_keys = true});
  if (parsed.ok()) return parsed;
  return InvalidArgument(what, ": ", parsed.status().message());
}

Result<json> ReadStrictJson(const ModelFolder& folder, const std::string& name, size_t max_bytes,
                            int max_depth) {
  PS_ASSIGN_OR_RETURN(const std::string text, folder.Read(name, max_bytes));
  return ParseStrictJson(text, folder.PathOf(name), max_depth);
}

Result<json> ParseConfigJson(std::string_view text, std::string_view what) {
  return ParseStrictJson(text, what, kMaxConfigDepth);
}

Result<json> ReadConfigJson(const ModelFolder& folder) {
  return ReadStrictJson(folder, kConfigFile, kMaxConfigBytes, kMaxConfigDepth);
}

std::string DescribeJson(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
      return "an array";
    case json::value_t::string: {
      const auto& text = value.get_ref<const std::string&>();
      return StrCat("the string \"", Abbreviate(text), "\"");
    }
    case json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    default:
      return StrCat("the number ", value.dump());
  }
}

}  // namespace polysketch
