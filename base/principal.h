// Whom the server shares what it has among: places in the queue, steps, slots, memory, connections,
// threads, grammars, sessions, cached prompts. docs/security.md has the rule.
#pragma once

#include <compare>
#include <string>

namespace polysketch {

// Two levels: all shares belong to `name`, and each `part` of it has a share of that share. So a
// client that names many parts takes no more from others than one that names none.
struct Principal {
  // "tenant acme" with API keys; otherwise the address: "host 10.0.0.7", "host 2001:db8::", "unix".
  std::string name = {};
  // Without API keys x-tenant-id; of a unix socket, without that, the connection. May be empty.
  std::string part = {};

  auto operator<=>(const Principal&) const = default;  // NOLINT(modernize-use-nullptr)
};

}  // namespace polysketch
