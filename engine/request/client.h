// The client that a request counts for, wherever clients share what the server has: queue places,
// steps, tokenizers, session memory, the prefix cache.
#pragma once

#include <string>

namespace polysketch {

// The tenant; without one the host that the request came from ("10.0.0.7", "2001:db8::", "unix").
// The prefixes keep a tenant that is named like a host apart from it.
inline std::string ClientOf(const std::string& tenant, const std::string& host) {
  return tenant.empty() ? "host " + host : "tenant " + tenant;
}

}  // namespace polysketch
