// A part of a JSON text, as it was written: parsing rounds large numbers and sorts names.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace polysketch {

// The text of the value that the names of `path` lead to, without white space between its parts; of
// members with one name, the last. `text` is an object that ParseJson accepts; nullopt if there is
// no such value.
std::optional<std::string> JsonSlice(std::string_view text, const std::vector<std::string>& path);

}  // namespace polysketch
