// Keys of store entries (docs/snapshot-format.md).
#pragma once

#include <string>

#include "base/status.h"

namespace polysketch {

inline std::string SessionKey(const std::string& id) { return "session-" + id; }
inline std::string SnapshotKey(const std::string& id) { return "snapshot-" + id; }
// Key of a migrated completion. "stopped" is the prefix in stores of every version.
inline std::string MigratedKey(const std::string& token) { return "stopped-" + token; }

inline Status NoSession(const std::string& id) { return NotFound("there is no session ", id); }

}  // namespace polysketch
