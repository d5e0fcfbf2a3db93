// How much each tenant has had, so that the next tokens go to the one that has had least: virtual
// time in tokens, as in start-time fair queueing.
//
// A tenant that was away begins again at the server's virtual time: it saves nothing up while it
// asks for nothing, and it cannot shed what it has used by leaving for a moment.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace polysketch {

class TenantShares {
 public:
  // Tokens; the least goes first.
  int64_t VirtualTime(std::string_view tenant) const;
  void Charge(std::string_view tenant, int64_t tokens);
  // The server's virtual time: the least of all tenants that want something now. Never runs back.
  void AdvanceTo(int64_t time);
  // Tenants that are ahead of the server's time: all that it has to remember.
  size_t size() const { return times_.size(); }

 private:
  int64_t now_ = 0;
  std::map<std::string, int64_t, std::less<>> times_;  // all > now_
};

}  // namespace polysketch
