// Names of entries in a store (docs/snapshot-format.md).
#pragma once

#include <string>

#include "base/status.h"

namespace polysketch {

inline std::string SessionKey(const std::string& id) { return "session-" + id; }
inline std::string SnapshotKey(const std::string& id) { return "snapshot-" + id; }
inline std::string MigratedKey(const std::string& id) { return "stopped-" + id; }

inline Status NoSession(const std::string& id) { return NotFound("there is no session ", id); }

}  // namespace polysketch
