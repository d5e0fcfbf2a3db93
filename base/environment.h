// The environment variables POLYSKETCH_* of the process: which of them no program reads.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace polysketch {

// Returns the names of the variables POLYSKETCH_* that no program of this project reads, sorted.
// `environment`: "NAME=VALUE" strings, the last one null, like environ. `is_known` accepts names
// that this function does not know: those of the server's flags. Variables that Kubernetes sets for
// a service named polysketch-... are left out.
std::vector<std::string> UnknownVariables(const char* const* environment,
                                          const std::function<bool(std::string_view)>& is_known);

// Returns the text of the warning for one of these names.
std::string UnknownVariableText(std::string_view name);

}  // namespace polysketch
