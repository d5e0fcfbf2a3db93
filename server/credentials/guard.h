// Who may call: the API keys of --api-keys, for all transports.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/credentials/api_keys.h"
#include "server/credentials/file_watch.h"
#include "server/credentials/rate_limit.h"

namespace polysketch {

enum class Refusal { kNoKey, kUnknownKey, kRequests, kTokens };
inline constexpr std::array<std::string_view, 4> kRefusalNames = {
    "no_key", "unknown_key", "requests_per_minute", "tokens_per_minute"};
using RefusedCounts = std::array<uint64_t, kRefusalNames.size()>;

using Refused = std::array<std::atomic<uint64_t>, kRefusalNames.size()>;

// A request that a key has made, with what the key has used. The calls of one HTTP request share
// it. Thread-safe. Requests that run keep the key that admitted them when the file changes.
class Caller {
 public:
  struct Used {
    std::mutex mutex;
    // Guarded by mutex:
    RateLimit requests;
    RateLimit tokens;
    int reserving = 0;  // requests that hold reserved tokens
    std::shared_ptr<Refused> refused;
  };

  Caller(ApiKey key, std::shared_ptr<Used> used) : key_(std::move(key)), used_(std::move(used)) {}

  const ApiKey& key() const { return key_; }
  const std::shared_ptr<Used>& used() const { return used_; }
  // Takes the tokens that a call may process from the key's minute, until the call settles them.
  // Returns how many it took: at most a minute's. RESOURCE_EXHAUSTED, with the time after which
  // they fit, if they do not fit beside those of other requests. A request that is the only one
  // needs one token that is left, whatever it may process: it is not cut, and later ones wait.
  Result<int64_t> ReserveTokens(int64_t tokens,
                                RateLimit::Clock::time_point now = RateLimit::Clock::now()) const;
  // Gives back what `calls` times ReserveTokens took, and counts the tokens that were processed.
  void SettleTokens(int calls, int64_t reserved, int64_t used) const;

 private:
  const ApiKey key_;
  const std::shared_ptr<Used> used_;
  mutable int reservations_ = 0;  // of ReserveTokens; guarded by used_->mutex
};

// Thread-safe.
class Guard {
 public:
  // Reads the keys from `path`, and again when the file changes; a wrong new file is reported in
  // the log and the keys stay. INVALID_ARGUMENT names the file, the line and the field.
  static Result<std::unique_ptr<Guard>> Open(const std::string& path);

  // Counts one request of the key in `authorization`, the values of the header or metadata of that
  // name: "Bearer KEY". UNAUTHENTICATED without a known key, RESOURCE_EXHAUSTED with a retry delay
  // beyond a limit of the key.
  Result<std::shared_ptr<const Caller>> Admit(
      const std::vector<std::string_view>& authorization,
      RateLimit::Clock::time_point now = RateLimit::Clock::now());

  // Number of refused calls, by Refusal.
  RefusedCounts refused() const;

 private:
  using Callers = std::vector<std::shared_ptr<const Caller>>;

  explicit Guard(std::string path) : path_(std::move(path)) {}
  // Replaces the keys; what a key of the same name has used stays used.
  Status Load(const std::string& text);
  void Reload(const Result<std::vector<std::string>>& files);
  std::shared_ptr<const Caller> Find(std::string_view key) const;
  // An error tells which refusal to count.
  using Decision = std::pair<std::optional<Refusal>, Status>;
  Decision Decide(const std::vector<std::string_view>& authorization,
                  RateLimit::Clock::time_point now, std::shared_ptr<const Caller>* caller) const;

  const std::string path_;
  mutable std::mutex mutex_;
  Callers callers_;  // guarded by mutex_
  const std::shared_ptr<Refused> refused_ = std::make_shared<Refused>();
  std::unique_ptr<FileWatch> watch_;  // last: its thread uses the members above
};

}  // namespace polysketch
