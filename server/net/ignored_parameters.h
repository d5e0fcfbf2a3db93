// Parameters of requests that had no effect: each is counted by its name, and the log has the
// warning parameter_ignored for the first request with it. Of the process, as the log is.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace polysketch {

// Names are a client's: further ones count as "other".
inline constexpr size_t kMaxIgnoredNames = 100;
inline constexpr size_t kMaxIgnoredNameBytes = 64;

void CountIgnoredParameter(std::string_view name);
// Requests by the name of the parameter.
std::map<std::string, uint64_t> IgnoredParameters();

// Whether a request with such a parameter is refused (--strict-parameters). Default: false.
void SetStrictParameters(bool strict);
bool StrictParameters();

}  // namespace polysketch
