#include "engine/scheduler/wait_queue.h"

#include <algorithm>
#include <limits>
#include <optional>
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

int WaitQueue::ClaimOf(const std::string& who, const Waiting& waiting, Clock::time_point now,
                       const Holdings& holdings) const {
  const int priority = waiting.sequence->priority();
  if (holdings.contains(who)) return priority;
  const auto served = served_.find(who);
  const Clock::time_point since =
      served == served_.end() ? waiting.since : std::max(waiting.since, served->second);
  return AgedLevel(priority, now - since, aging_);
}

Shared<int> WaitQueue::Claim(const Waiting& waiting, Clock::time_point now,
                             const Holdings& holdings) const {
  return {ClaimOf(waiting.sequence->client(), waiting, now, holdings),
          ClaimOf(waiting.sequence->part(), waiting, now, holdings)};
}

WaitQueue::Iterator WaitQueue::Next(Clock::time_point now, const Turns& turns,
                                    const Holdings& holdings,
                                    const std::function<bool(const Waiting&)>& eligible) {
  // A client or a part, with the next of its sequences and the highest claim.
  struct Candidate {
    int claim = std::numeric_limits<int>::min();
    Iterator next;
  };
  const auto rank = [&](const Waiting& waiting) {
    return std::tuple(!waiting.of_choices(), -Level(waiting, now), waiting.sequence->id(),
                      waiting.source != nullptr);
  };
  const auto comes_first = [&](bool as_part, const Candidate& a, const Candidate& b) {
    const auto candidate_rank = [&](const Candidate& candidate) {
      const Sequence& sequence = *candidate.next->sequence;
      const auto held = holdings.find(as_part ? sequence.part() : sequence.client());
      const double share = held == holdings.end() ? 0 : held->second.share();
      const Turns::Time time = turns.Of(sequence.principal());
      return std::tuple(share > 0, -candidate.claim, !candidate.next->starts_anew(), share,
                        as_part ? time.part : time.principal, sequence.id());
    };
    return candidate_rank(a) < candidate_rank(b);
  };
  std::map<std::string_view, Candidate> parts;
  std::map<std::string_view, int> claims;  // of clients
  for (Iterator at = list_.begin(); at != list_.end(); ++at) {
    if (at->sequence->ended() || at->sequence->idle() || at->awaits_source() || !eligible(*at)) {
      continue;
    }
    const Shared<int> claim = Claim(*at, now, holdings);
    const auto [found, added] = parts.try_emplace(at->sequence->part(), Candidate{.next = at});
    Candidate& part = found->second;
    part.claim = std::max(part.claim, claim.part);
    if (!added && rank(*at) < rank(*part.next)) part.next = at;
    const auto of_client = claims.try_emplace(at->sequence->client(), claim.client).first;
    of_client->second = std::max(of_client->second, claim.client);
  }
  std::map<std::string_view, Candidate> clients;  // the first of their parts
  for (const auto& [name, part] : parts) {
    const auto [found, added] = clients.try_emplace(part.next->sequence->client(), part);
    Candidate& best = found->second;
    if (!added && comes_first(/*as_part=*/true, part, best)) best = part;
  }
  std::optional<Candidate> first;
  for (auto& [name, client] : clients) {
    client.claim = claims.at(name);
    if (!first || comes_first(/*as_part=*/false, client, *first)) first = client;
  }
  return first ? first->next : list_.end();
}

void WaitQueue::OnServed(const Sequence& sequence, Clock::time_point now) {
  served_.insert_or_assign(sequence.client(), now);
  served_.insert_or_assign(sequence.part(), now);
  if (served_.size() <= 2 * list_.size()) return;
  std::set<std::string_view> waiting;  // of one without a waiting sequence none is needed
  for (const Waiting& other : list_) {
    waiting.insert(other.sequence->client());
    waiting.insert(other.sequence->part());
  }
  std::erase_if(served_, [&](const auto& named) { return !waiting.contains(named.first); });
}

Waiting WaitQueue::Take(Iterator at) {
  Waiting waiting = std::move(*at);
  list_.erase(at);
  return waiting;
}

}  // namespace polysketch
