#include "engine/scheduler/tenant_shares.h"

namespace polysketch {

int64_t TenantShares::VirtualTime(std::string_view tenant) const {
  const auto found = times_.find(tenant);
  return found == times_.end() ? now_ : found->second;
}

void TenantShares::Charge(std::string_view tenant, int64_t tokens) {
  const auto found = times_.find(tenant);
  if (found != times_.end()) {
    found->second += tokens;
  } else if (tokens > 0) {
    times_.emplace(tenant, now_ + tokens);
  }
}

void TenantShares::AdvanceTo(int64_t time) {
  if (time <= now_) return;
  now_ = time;
  std::erase_if(times_, [this](const auto& tenant) { return tenant.second <= now_; });
}

}  // namespace polysketch
