#include "engine/scheduler/queue_places.h"

namespace polysketch {

Result<std::vector<RequestId>> QueuePlaces::Add(const Request& request) {
  std::vector<RequestId> given_up;
  while (!SlotsFit(request) || !TokensFit(request)) {
    const std::optional<RequestId> id = NextToGiveWay(request);
    if (!id) {
      GiveBack(given_up);
      given_up.clear();
      if (SlotsFit(request) && FirstTokens(request)) break;
      return Full(request);
    }
    Place& place = places_.at(*id);
    Uncount(place);
    place.given_up = true;
    given_up.push_back(*id);
  }
  Count(places_.emplace(request.id, Place{.request = request}).first->second);
  return given_up;
}

void QueuePlaces::GiveBack(const std::vector<RequestId>& given_up) {
  for (const RequestId id : given_up) {
    Place& place = places_.at(id);
    place.given_up = false;
    Count(place);
  }
}

bool QueuePlaces::SlotsFit(const Request& request) const {
  return slots_ + request.slots <= int64_t{limits_.max_sequences} + limits_.max_queue;
}

bool QueuePlaces::TokensFit(const Request& request) const {
  // A prompt that exceeds the limit alone must get in at some time: when no other one waits.
  if (limits_.max_tokens == 0 || tokens_ == 0) return true;
  return tokens_ + request.tokens <= limits_.max_tokens;
}

bool QueuePlaces::FirstTokens(const Request& request) const {
  const auto own = clients_.find(request.client);
  if (own != clients_.end() && own->second.tokens > 0) return false;
  int64_t sharing = 1;
  for (const auto& [name, client] : clients_) sharing += client.tokens > 0;
  return request.tokens <= limits_.max_tokens / sharing;
}

Status QueuePlaces::Full(const Request& request) const {
  if (!SlotsFit(request)) {
    return ResourceExhausted("the queue is full: ", limits_.max_sequences, " running and ",
                             limits_.max_queue, " waiting requests; try again later")
        .WithReason(Reason::kQueueFull);
  }
  return ResourceExhausted("the queue is full: ", tokens_, " tokens of prompts wait, ",
                           limits_.max_tokens, " may; try again later")
      .WithReason(Reason::kQueueFull);
}

std::optional<RequestId> QueuePlaces::NextToGiveWay(const Request& request) const {
  const bool by_slots = !SlotsFit(request);
  const auto use = [by_slots](const Client& client) {
    return by_slots ? client.slots : client.tokens;
  };
  const auto own = clients_.find(request.client);
  int64_t most = (own == clients_.end() ? 0 : use(own->second)) +
                 (by_slots ? int64_t{request.slots} : request.tokens);
  std::optional<RequestId> found;
  for (auto at = clients_.begin(); at != clients_.end(); ++at) {
    const Client& client = at->second;
    if (at == own || use(client) <= most || client.waiting.empty()) continue;
    const auto& [priority, negative_id] = *client.waiting.begin();
    const RequestId id = static_cast<RequestId>(-negative_id);
    const bool only = client.slots == places_.at(id).request.slots;
    if (only || priority > request.priority) continue;
    most = use(client);
    found = id;
  }
  return found;
}

void QueuePlaces::OnAdmitted(RequestId id) {
  const auto found = places_.find(id);
  if (found == places_.end() || !found->second.waiting) return;
  Place& place = found->second;
  if (!place.given_up) Uncount(place);
  place.given_up = false;
  place.waiting = false;
  Count(place);
}

void QueuePlaces::Remove(RequestId id) {
  const auto found = places_.find(id);
  if (found == places_.end()) return;
  if (!found->second.given_up) Uncount(found->second);
  places_.erase(found);
}

void QueuePlaces::Count(const Place& place) {
  const Request& request = place.request;
  Client& client = clients_[request.client];
  client.slots += request.slots;
  slots_ += request.slots;
  if (!place.waiting) return;
  client.tokens += request.tokens;
  tokens_ += request.tokens;
  client.waiting.emplace(request.priority, -static_cast<int64_t>(request.id));
}

void QueuePlaces::Uncount(const Place& place) {
  const Request& request = place.request;
  const auto at = clients_.find(request.client);
  Client& client = at->second;
  client.slots -= request.slots;
  slots_ -= request.slots;
  if (place.waiting) {
    client.tokens -= request.tokens;
    tokens_ -= request.tokens;
    client.waiting.erase({request.priority, -static_cast<int64_t>(request.id)});
  }
  if (client.slots == 0) clients_.erase(at);
}

}  // namespace polysketch
