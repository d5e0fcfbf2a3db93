#include "engine/scheduler/wait_queue.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace polysketch {

int AgedLevel(int priority, std::chrono::nanoseconds waited, std::chrono::nanoseconds aging) {
  constexpr int64_t kMax = 1 << 20;  // far above any priority
  const int64_t aged = std::clamp<int64_t>(waited / aging, 0, kMax);
  return priority + static_cast<int>(aged);
}

int WaitQueue::Level(const Waiting& waiting, Clock::time_point now) const {
  return AgedLevel(waiting.sequence->priority(), now - waiting.since, aging_);
}

int WaitQueue::Claim(const Waiting& waiting, Clock::time_point now) const {
  const std::string& client = waiting.sequence->client();
  const auto served = served_.find(client);
  const Clock::time_point since =
      served == served_.end() ? waiting.since : std::max(waiting.since, served->second);
  return AgedLevel(waiting.sequence->priority(), now - since, aging_);
}

WaitQueue::Iterator WaitQueue::Next(Clock::time_point now, const ClientShares& shares,
                                    const std::function<bool(const Waiting&)>& eligible) {
  struct Client {
    int claim = 0;  // the highest of its sequences
    Iterator next;
  };
  const auto rank = [&](const Waiting& waiting) {
    return std::tuple(waiting.source == nullptr, -Level(waiting, now), waiting.sequence->id());
  };
  std::map<std::string_view, Client> clients;
  for (Iterator at = list_.begin(); at != list_.end(); ++at) {
    if (at->sequence->ended() || at->sequence->idle() || at->awaits_source() || !eligible(*at)) {
      continue;
    }
    const int claim = Claim(*at, now);
    const auto [found, added] =
        clients.try_emplace(at->sequence->client(), Client{.claim = claim, .next = at});
    Client& client = found->second;
    if (added) continue;
    client.claim = std::max(client.claim, claim);
    if (rank(*at) < rank(*client.next)) client.next = at;
  }
  const auto client_rank = [&](const auto& named) {
    const auto& [name, client] = named;
    return std::tuple(client.next->source == nullptr, -client.claim, shares.VirtualTime(name),
                      client.next->sequence->id());
  };
  const auto best = std::min_element(
      clients.begin(), clients.end(),
      [&](const auto& a, const auto& b) { return client_rank(a) < client_rank(b); });
  return best == clients.end() ? list_.end() : best->second.next;
}

Waiting WaitQueue::TakeForSlot(Iterator at, Clock::time_point now) {
  Waiting waiting = Take(at);
  served_.insert_or_assign(waiting.sequence->client(), now);
  if (served_.size() > list_.size()) {  // of a client without a waiting sequence none is needed
    std::set<std::string_view> clients;
    for (const Waiting& other : list_) clients.insert(other.sequence->client());
    std::erase_if(served_, [&](const auto& named) { return !clients.contains(named.first); });
  }
  return waiting;
}

Waiting WaitQueue::Take(Iterator at) {
  Waiting waiting = std::move(*at);
  list_.erase(at);
  return waiting;
}

}  // namespace polysketch
