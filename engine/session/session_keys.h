// Keys of store entries (docs/snapshot-format.md).
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace polysketch {

inline std::string SessionKey(const std::string& id) { return "session-" + id; }
inline std::string SnapshotKey(const std::string& id) { return "snapshot-" + id; }
inline std::string BlocksKey(const std::string& id) { return "blocks-" + id; }
// Key of a migrated completion. "stopped" is the prefix in stores of every version.
inline std::string MigratedKey(const std::string& token) { return "stopped-" + token; }

inline Status NoSession(std::string_view id) {
  constexpr size_t kMaxLength = 64;  // of an id that no server made
  return NotFound("there is no session ", id.substr(0, kMaxLength),
                  id.size() > kMaxLength ? "..." : "");
}

inline Status InUse(std::string_view id) {
  return Status(Code::kAborted, StrCat("session ", id, " is in use"))
      .WithReason(Reason::kSessionInUse);
}

}  // namespace polysketch
