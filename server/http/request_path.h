// The path and the query of the target of an HTTP request.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polysketch {

// The path of a request target, without query and fragment, with "%2F" decoded. Empty segments
// count as absent: "//v1/models/" is "/v1/models". nullopt for a broken escape.
std::optional<std::string> DecodedPath(std::string_view target);
// The parameters of a query, "a=1&b=2", in their order, with "%2F" decoded and "+" a space. nullopt
// for a broken escape.
std::optional<std::vector<std::pair<std::string, std::string>>> DecodedQuery(
    std::string_view query);

}  // namespace polysketch
