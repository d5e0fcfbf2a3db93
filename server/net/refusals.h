// Requests that are refused, at whatever door and for whatever reason: each is counted by its
// reason, and has a line with its id in the log.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log_limit.h"
#include "base/status.h"

namespace polysketch {

// Thread-safe.
class Refusals {
 public:
  // Of each reason that Status::reason may name, in a fixed order.
  using Counts = std::vector<std::pair<std::string_view, uint64_t>>;

  // What is known of a refused request. `method`: "/package.Service/Method", or "POST /path".
  struct Request {
    std::string_view id;
    std::string_view peer;
    std::string_view method;
  };

  // Counts a refusal, and writes the line `request_refused`.
  void Add(const Status& status, const Request& request);
  // Counts a refusal. Returns whether its line may be written: a flood of calls must not flood the
  // log.
  bool Count(const Status& status);
  Counts counts() const;

 private:
  static constexpr int kCodes = static_cast<int>(Code::kUnauthenticated) + 1;

  std::array<std::atomic<uint64_t>, kReasons + kCodes> counts_ = {};
  LogLimit log_limit_{"refused_calls_not_logged", 50};
};

}  // namespace polysketch
