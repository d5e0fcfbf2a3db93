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

int WaitQueue::Claim(const Waiting& waiting, Clock::time_point now, bool has_slot) const {
  const int priority = waiting.sequence->priority();
  if (has_slot) return priority;
  const auto served = served_.find(waiting.sequence->client());
  const Clock::time_point since =
      served == served_.end() ? waiting.since : std::max(waiting.since, served->second);
  return AgedLevel(priority, now - since, aging_);
}

WaitQueue::Iterator WaitQueue::Next(Clock::time_point now, const ClientShares& shares,
                                    const Holdings& holdings,
                                    const std::function<bool(const Waiting&)>& eligible) {
  struct Client {
    double share = 0;
    int claim = 0;  // the highest of its sequences
    Iterator next;
  };
  const auto rank = [&](const Waiting& waiting) {
    return std::tuple(!waiting.of_choices(), -Level(waiting, now), waiting.sequence->id(),
                      waiting.source != nullptr);
  };
  std::map<std::string_view, Client> clients;
  for (Iterator at = list_.begin(); at != list_.end(); ++at) {
    if (at->sequence->ended() || at->sequence->idle() || at->awaits_source() || !eligible(*at)) {
      continue;
    }
    const auto [found, added] = clients.try_emplace(at->sequence->client(), Client{.next = at});
    Client& client = found->second;
    if (added) {
      const auto held = holdings.find(found->first);
      client.share = held == holdings.end() ? 0 : held->second.share();
    }
    const int claim = Claim(*at, now, client.share > 0);
    client.claim = added ? claim : std::max(client.claim, claim);
    if (!added && rank(*at) < rank(*client.next)) client.next = at;
  }
  const auto client_rank = [&](const auto& named) {
    const auto& [name, client] = named;
    return std::tuple(client.share > 0, -client.claim, !client.next->starts_anew(), client.share,
                      shares.VirtualTime(name), client.next->sequence->id());
  };
  const auto best = std::min_element(
      clients.begin(), clients.end(),
      [&](const auto& a, const auto& b) { return client_rank(a) < client_rank(b); });
  return best == clients.end() ? list_.end() : best->second.next;
}

void WaitQueue::OnServed(const std::string& client, Clock::time_point now) {
  served_.insert_or_assign(client, now);
  if (served_.size() <= list_.size()) return;
  std::set<std::string_view> clients;  // of a client without a waiting sequence none is needed
  for (const Waiting& other : list_) clients.insert(other.sequence->client());
  std::erase_if(served_, [&](const auto& named) { return !clients.contains(named.first); });
}

Waiting WaitQueue::Take(Iterator at) {
  Waiting waiting = std::move(*at);
  list_.erase(at);
  return waiting;
}

}  // namespace polysketch
