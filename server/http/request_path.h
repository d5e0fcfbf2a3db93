// The path of the target of an HTTP request.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace polysketch {

// The path of a request target, without query and fragment, with "%2F" decoded. Empty segments count
// as absent: "//v1/models/" is "/v1/models". nullopt for a broken escape.
std::optional<std::string> DecodedPath(std::string_view target);

}  // namespace polysketch
