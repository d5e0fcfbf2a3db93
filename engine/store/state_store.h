// The state store: a folder, which may be a shared volume, or Redis. Entries are bytes with an
// owner; the entries of one owner are NOT_FOUND for every other.
//
// Thread-safe. Calls block on files or the network, so the engine thread makes none.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_buffer.h"
#include "base/status.h"

namespace polysketch {

struct StoredInfo {
  std::string key;
  uint64_t revision = 0;  // changes with every Put
  int64_t bytes = 0;
  std::chrono::system_clock::time_point created;  // of this revision
  std::string head;  // the first bytes, at most kStoredHeadBytes, for listings
};

inline constexpr size_t kStoredHeadBytes = 64;

// Whether an entry was deleted or has expired, or is not one.
inline bool IsGoneOrDamaged(const Status& status) {
  return status.code() == Code::kNotFound || status.code() == Code::kDataLoss;
}

// The answer to a change that was perhaps made: the store may hold the entry as it was, or as it
// should be. Any other error of a change means that it was not made.
inline Status OutcomeUnknown(const Status& why) {
  return Status(Code::kAborted, StrCat(why.message(), "; whether the change was made is unknown"))
      .WithReason(Reason::kOutcomeUnknown);
}
inline bool IsOutcomeUnknown(const Status& status) {
  return status.reason() == ReasonName(Reason::kOutcomeUnknown);
}

struct StoreUsage {
  int64_t bytes = 0;
  int64_t limit = 0;  // 0: none, or unknown
};

class StateStore {
 public:
  virtual ~StateStore() = default;

  // "dir" or "redis".
  virtual std::string_view kind() const = 0;

  // Replaces the entry, all or nothing, and returns its revision. Keys are [a-z0-9-]+, owners
  // [A-Za-z0-9._:-]*. `ttl` counts from now. OK means that the entry survives this process, and the
  // machine as far as the store does. RESOURCE_EXHAUSTED above the limit: no entry is dropped
  // before it expires. An error means that the entry is as before, but for OutcomeUnknown.
  virtual Result<uint64_t> Put(const std::string& owner, const std::string& key, std::string bytes,
                               std::chrono::milliseconds ttl) = 0;
  struct Entry {
    StoredInfo info;
    ByteBuffer bytes;
  };
  virtual Result<Entry> Get(const std::string& owner, const std::string& key) = 0;
  virtual Result<StoredInfo> Stat(const std::string& owner, const std::string& key) = 0;
  // NOT_FOUND for an entry that does not exist. Errors as of Put.
  virtual Status Delete(const std::string& owner, const std::string& key) = 0;
  virtual Status Touch(const std::string& owner, const std::string& key,
                       std::chrono::milliseconds ttl) = 0;
  // Touch and Stat in one.
  virtual Result<StoredInfo> Renew(const std::string& owner, const std::string& key,
                                   std::chrono::milliseconds ttl) {
    PS_RETURN_IF_ERROR(Touch(owner, key, ttl));
    return Stat(owner, key);
  }
  // The owner's entries whose keys begin with `prefix`, in order of key, but for damaged ones. An
  // error if the store cannot tell all of them.
  virtual Result<std::vector<StoredInfo>> List(const std::string& owner,
                                               const std::string& prefix) = 0;
  // A number that the owner's entries whose keys begin with `prefix` do not exceed: it may count
  // expired and damaged ones. Cheaper than List.
  virtual Result<int64_t> CountAtMost(const std::string& owner, const std::string& prefix) {
    PS_ASSIGN_OR_RETURN(const std::vector<StoredInfo> infos, List(owner, prefix));
    return std::ssize(infos);
  }
  // Removes expired entries, if the store does not remove them by itself, and updates usage().
  virtual void Expire() {}
  // The usage at the last Expire, for a folder plus what this process has written since. Does not
  // block.
  virtual StoreUsage usage() const { return {}; }
  // When the operation last moved that has hung longest after its caller got UNAVAILABLE; unset:
  // none hangs.
  virtual std::optional<std::chrono::steady_clock::time_point> hangs_since() const {
    return std::nullopt;
  }
};

}  // namespace polysketch
