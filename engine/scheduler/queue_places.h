// Places in the queue: who gets one, and who gives one up, when the queue is full.
//
// A place is a slot that an unfinished request can use, whether it waits or runs. When all places
// are taken, a request takes the place of a waiting request of one that holds more
// (Shares::HoldsMore): of the principal that has the most, and of its part that has the most. The
// tokens of waiting prompts are shared alike.
//
// Which request gives way: the newest of the part's lowest priority, which would be served last.
//   - A request that has had a slot keeps its place. Where these are more than the slots, as those
//     of many parts of one principal that take turns, `max_sequences` places beyond the limit are
//     for principals without one: they do not wait for the end of what others have begun.
//   - A priority above the newcomer's does not give way.
//   - A principal keeps its only request, and a part keeps it towards others of its principal. So
//     the first of its waiting requests, and with it every principal, is served in the end.
//
// Not thread-safe; Mailbox guards it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/shares.h"
#include "base/status.h"
#include "engine/request/request.h"

namespace polysketch {

class QueuePlaces {
 public:
  struct Limits {
    int max_sequences = 0;
    int max_queue = 0;
    int64_t max_tokens = 0;  // of waiting prompts; 0: no limit
  };
  struct Request {
    RequestId id = 0;
    Principal principal = {};
    int priority = 0;
    int slots = 1;       // at most max_sequences + max_queue
    int64_t tokens = 0;  // of the prompt
  };

  explicit QueuePlaces(const Limits& limits) : limits_(limits) {}

  // Takes places for a waiting request. Returns the requests that give theirs up, which the caller
  // ends. RESOURCE_EXHAUSTED if the queue is full; nothing has changed then.
  Result<std::vector<RequestId>> Add(const Request& request);
  // The request has a slot. Its place is its own, even if it was to give it up.
  void OnAdmitted(RequestId id);
  // Unknown ids are ignored.
  void Remove(RequestId id);

 private:
  struct Place {
    Request request;
    bool waiting = true;
    bool given_up = false;  // not counted any more
  };
  // Waiting requests of a part: priority, and the negative id, so that the first gives way first.
  using Waiting = std::set<std::pair<int, int64_t>>;

  bool SlotsFit(const Request& request) const;
  // Whether a place is the first of the principal, and one beyond the limit is free for it.
  bool FirstSlots(const Request& request) const;
  bool TokensFit(const Request& request) const;
  // Whether the tokens are the first of the principal, and at most its share. They may then exceed
  // the limit: large prompts of others, each the only one of its principal, must not lock one out.
  // The sum over n principals stays below the limit times ln(n) + 1.
  bool FirstTokens(const Request& request) const;
  void GiveBack(const std::vector<RequestId>& given_up);
  Status Full(const Request& request) const;
  // Returns the next request that gives way to `request`; nullopt if none does.
  std::optional<RequestId> NextToGiveWay(const Request& request) const;
  void Count(const Place& place);
  void Uncount(const Place& place);

  const Limits limits_;
  std::unordered_map<RequestId, Place> places_;
  std::map<Principal, Waiting> waiting_;  // of parts with some
  Shares slots_;
  int64_t had_slots_ = 0;  // places of requests that have had a slot
  Shares tokens_;          // of waiting prompts
};

}  // namespace polysketch
