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

// A key that has made a call, with what it has used. Thread-safe. Calls that run keep the key that
// admitted them when the file changes.
class Caller {
 public:
  struct Used {
    std::mutex mutex;
    RateLimit requests;  // guarded by mutex
    RateLimit tokens;    // guarded by mutex
  };

  Caller(ApiKey key, std::shared_ptr<Used> used) : key_(std::move(key)), used_(std::move(used)) {}

  const ApiKey& key() const { return key_; }
  const std::shared_ptr<Used>& used() const { return used_; }
  // Counts the tokens that a request has processed.
  void UseTokens(int64_t tokens) const;

 private:
  const ApiKey key_;
  const std::shared_ptr<Used> used_;
};

enum class Refusal { kNoKey, kUnknownKey, kRequests, kTokens };
inline constexpr std::array<std::string_view, 4> kRefusalNames = {
    "no_key", "unknown_key", "requests_per_minute", "tokens_per_minute"};
using RefusedCounts = std::array<uint64_t, kRefusalNames.size()>;

// Thread-safe.
class Guard {
 public:
  // Reads the keys from `path`, and again when the file changes; a wrong new file is reported in the
  // log and the keys stay. INVALID_ARGUMENT names the file, the line and the field.
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
  std::array<std::atomic<uint64_t>, kRefusalNames.size()> refused_ = {};
  std::unique_ptr<FileWatch> watch_;  // last: its thread uses the members above
};

}  // namespace polysketch
