// Parameters that clients of other servers send, and this server does not read: those without an
// effect here are ignored, those that would change an output are refused. docs/openai-api.md lists
// them.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/status.h"

namespace polysketch {

struct OtherParameter {
  std::string_view name;
  // Values that mean "off" beside false and empty ones, as JSON with spaces between.
  std::string_view off = {};
  // Why it is refused; empty: it is ignored.
  std::string_view refused = {};
};
std::span<const OtherParameter> OtherParameters();

// Counts a parameter without an effect as ignored. INVALID_ARGUMENT under --strict-parameters.
Status CheckIgnored(const std::string& prefix, const std::string& name);
// What becomes of the parameter `name`, which the endpoint does not read: it is counted as ignored,
// or the result is INVALID_ARGUMENT. A name that is in no table is ignored, unless it resembles one
// of `known`: that is a mistake, not a parameter of another server. `prefix`: of names within
// another parameter.
Status CheckUnread(const std::string& prefix, const std::string& name,
                   const nlohmann::ordered_json& value,
                   const std::unordered_set<std::string>& known);

}  // namespace polysketch
