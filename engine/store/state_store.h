// Where states rest outside the process: a folder, which may be a shared volume, or Redis. Entries
// are bytes with an owner; one tenant's are NOT_FOUND for every other.
//
// Thread-safe; calls block on files or the network, so the engine thread makes none.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_buffer.h"
#include "base/status.h"

namespace polysketch {

struct StoredInfo {
  std::string key;
  uint64_t revision = 0;  // another with every Put
  int64_t bytes = 0;
  std::chrono::system_clock::time_point created;  // of this revision
  std::string head;  // its first bytes, at most kStoredHeadBytes: what a listing tells of it
};

inline constexpr size_t kStoredHeadBytes = 64;

struct StoreUsage {
  int64_t bytes = 0;
  int64_t limit = 0;  // 0: none that we know of
};

class StateStore {
 public:
  virtual ~StateStore() = default;

  // "dir" or "redis".
  virtual std::string_view kind() const = 0;

  // Keys are [a-z0-9-]+, owners [A-Za-z0-9._:-]*. `ttl` counts from now.
  //
  // Replaces what is there, all or nothing. Once OK is returned the entry survives the end of this
  // process, and of the machine as far as the store does. Returns the revision. RESOURCE_EXHAUSTED
  // over the limit: entries stay until they expire, since their owners were told that they would.
  virtual Result<uint64_t> Put(const std::string& owner, const std::string& key,
                               std::string_view bytes, std::chrono::milliseconds ttl) = 0;
  struct Entry {
    StoredInfo info;
    ByteBuffer bytes;
  };
  virtual Result<Entry> Get(const std::string& owner, const std::string& key) = 0;
  virtual Result<StoredInfo> Stat(const std::string& owner, const std::string& key) = 0;
  // NOT_FOUND when it is not there.
  virtual Status Delete(const std::string& owner, const std::string& key) = 0;
  virtual Status Touch(const std::string& owner, const std::string& key,
                       std::chrono::milliseconds ttl) = 0;
  // Of one owner, keys that begin with `prefix`, in order of key.
  virtual Result<std::vector<StoredInfo>> List(const std::string& owner,
                                               const std::string& prefix) = 0;
  // Removes what has expired, where the store does not do that by itself, and looks at what is
  // left.
  virtual void Expire() {}
  // As of the last look, and what this process has written since. Does not block.
  virtual StoreUsage usage() const { return {}; }
};

}  // namespace polysketch
