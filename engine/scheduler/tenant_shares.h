// Virtual time of each tenant, in tokens processed, as in start-time fair queueing (Goyal, Vin and
// Cheng, 1996). The next tokens go to the tenant with the least.
//
// A tenant that had no requests restarts at the server's virtual time: it accumulates no credit while
// it is away, and it keeps its debt if it leaves for a moment.
//
// Used by the engine thread only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace polysketch {

class TenantShares {
 public:
  int64_t VirtualTime(std::string_view tenant) const {
    const auto found = times_.find(tenant);
    return found == times_.end() ? now_ : found->second;
  }
  void Charge(std::string_view tenant, int64_t tokens) {
    const auto found = times_.find(tenant);
    if (found != times_.end()) {
      found->second += tokens;
    } else if (tokens > 0) {
      times_.emplace(tenant, now_ + tokens);
    }
  }
  // Sets the server's virtual time: the least of all tenants that have requests. Never decreases.
  void AdvanceTo(int64_t time) {
    if (time <= now_) return;
    now_ = time;
    std::erase_if(times_, [this](const auto& tenant) { return tenant.second <= now_; });
  }
  // Tenants after the server's time: only these are stored.
  size_t size() const { return times_.size(); }

 private:
  int64_t now_ = 0;
  std::map<std::string, int64_t, std::less<>> times_;  // all > now_
};

}  // namespace polysketch
