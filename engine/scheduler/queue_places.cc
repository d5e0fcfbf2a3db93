#include "engine/scheduler/queue_places.h"

namespace polysketch {

Result<std::vector<RequestId>> QueuePlaces::Add(const Request& request) {
  std::vector<RequestId> given_up;
  while (!SlotsFit(request) || !TokensFit(request)) {
    const std::optional<RequestId> id = NextToGiveWay(request);
    if (!id) {
      GiveBack(given_up);
      given_up.clear();
      if ((SlotsFit(request) || FirstSlots(request)) &&
          (TokensFit(request) || FirstTokens(request)))
        break;
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
  return slots_.total() + request.slots <= int64_t{limits_.max_sequences} + limits_.max_queue;
}

bool QueuePlaces::FirstSlots(const Request& request) const {
  return slots_.Of(request.principal).principal == 0 && had_slots_ > limits_.max_sequences &&
         slots_.total() + request.slots <= int64_t{2} * limits_.max_sequences + limits_.max_queue;
}

bool QueuePlaces::TokensFit(const Request& request) const {
  // A prompt that exceeds the limit alone must get in at some time: when no other one waits.
  if (limits_.max_tokens == 0 || tokens_.total() == 0) return true;
  return tokens_.total() + request.tokens <= limits_.max_tokens;
}

bool QueuePlaces::FirstTokens(const Request& request) const {
  if (tokens_.Of(request.principal).principal > 0) return false;
  return request.tokens <= limits_.max_tokens / (tokens_.size() + 1);
}

Status QueuePlaces::Full(const Request& request) const {
  if (!SlotsFit(request)) {
    return ResourceExhausted("the queue is full: ", limits_.max_sequences, " running and ",
                             limits_.max_queue, " waiting requests; try again later")
        .WithReason(Reason::kQueueFull);
  }
  return ResourceExhausted("the queue is full: ", tokens_.total(), " tokens of prompts wait, ",
                           limits_.max_tokens, " may; try again later")
      .WithReason(Reason::kQueueFull);
}

std::optional<RequestId> QueuePlaces::NextToGiveWay(const Request& request) const {
  const bool by_slots = !SlotsFit(request);
  const Shares& shares = by_slots ? slots_ : tokens_;
  const int64_t more = by_slots ? int64_t{request.slots} : request.tokens;
  Shares::Held most;
  std::optional<RequestId> found;
  for (const auto& [principal, waiting] : waiting_) {
    if (!shares.HoldsMore(principal, request.principal, more)) continue;
    const Shares::Held held = shares.Of(principal);
    if (held <= most) continue;
    const auto& [priority, negative_id] = *waiting.begin();
    const RequestId id = static_cast<RequestId>(-negative_id);
    const Shares::Held slots = slots_.Of(principal);
    const bool same = principal.name == request.principal.name;
    const bool only = (same ? slots.part : slots.principal) == places_.at(id).request.slots;
    if (only || priority > request.priority) continue;
    most = held;
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
  slots_.Add(request.principal, request.slots);
  if (!place.waiting) {
    had_slots_ += request.slots;
    return;
  }
  tokens_.Add(request.principal, request.tokens);
  waiting_[request.principal].emplace(request.priority, -static_cast<int64_t>(request.id));
}

void QueuePlaces::Uncount(const Place& place) {
  const Request& request = place.request;
  slots_.Remove(request.principal, request.slots);
  if (!place.waiting) {
    had_slots_ -= request.slots;
    return;
  }
  tokens_.Remove(request.principal, request.tokens);
  const auto at = waiting_.find(request.principal);
  at->second.erase({request.priority, -static_cast<int64_t>(request.id)});
  if (at->second.empty()) waiting_.erase(at);
}

}  // namespace polysketch
