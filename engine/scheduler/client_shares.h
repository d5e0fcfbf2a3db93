// Virtual time of each client, in tokens processed, as in start-time fair queueing (Goyal, Vin and
// Cheng, 1996). The next tokens go to the client with the least.
//
// A client without requests restarts at the server's virtual time: it accumulates no credit while
// it has no requests, and keeps its debt if it has none for a moment.
//
// Used by the engine thread only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace polysketch {

class ClientShares {
 public:
  int64_t VirtualTime(std::string_view client) const {
    const auto found = times_.find(client);
    return found == times_.end() ? now_ : found->second;
  }
  void Charge(std::string_view client, int64_t tokens) {
    const auto found = times_.find(client);
    if (found != times_.end()) {
      found->second += tokens;
    } else if (tokens > 0) {
      times_.emplace(client, now_ + tokens);
    }
  }
  // Advances the server's virtual time to `time`, the minimum over all clients that have requests.
  // The server's time never decreases.
  void AdvanceTo(int64_t time) {
    if (time <= now_) return;
    now_ = time;
    std::erase_if(times_, [this](const auto& client) { return client.second <= now_; });
  }
  // Number of clients whose virtual time is above the server's. Only these are stored.
  size_t size() const { return times_.size(); }

 private:
  int64_t now_ = 0;
  std::map<std::string, int64_t, std::less<>> times_;  // all > now_
};

}  // namespace polysketch
