// The file of --api-keys: which keys may call, for which tenant, within which limits.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace polysketch {

using Sha256 = std::array<uint8_t, 32>;

Sha256 Sha256Of(std::string_view text);

struct ApiKey {
  std::string name;    // in logs and metrics
  Sha256 sha256 = {};  // of the key
  std::string tenant;
  std::optional<int> max_priority = {};  // nullopt: that of the server
  int64_t requests_per_minute = 0;       // 0: no limit
  int64_t tokens_per_minute = 0;         // 0: no limit
};

// Parses one JSON object a line; empty lines are skipped. INVALID_ARGUMENT names the line and the
// field that is wrong, what was expected and what was found.
Result<std::vector<ApiKey>> ParseApiKeys(std::string_view text);

}  // namespace polysketch
