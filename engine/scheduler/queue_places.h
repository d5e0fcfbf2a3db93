// Places of clients in the queue: who gets one, and who gives one up, when the queue is full.
//
// A place is a slot that an unfinished request can use, whether it waits or runs. When all places
// are taken, a request of a client that has fewer than another takes the place of a waiting request
// of the client that has the most (longest queue drop: Suter, Lakshman, Stiliadis and Choudhury,
// 1998). So clients that ask for more than their share converge to equal shares, and a place that no
// other client asks for is free for any. The tokens of waiting prompts are shared alike.
//
// Which request gives way: the newest of the client's lowest priority, which would be served last.
//   - A request that has had a slot keeps its place.
//   - A priority above the newcomer's does not give way.
//   - A client keeps its only request. So the first of its waiting requests, and with it every
//     client, is served in the end.
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
    std::string client;
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
  struct Client {
    int64_t slots = 0;
    int64_t tokens = 0;  // of waiting prompts
    // Waiting requests: priority, and the negative id, so that the first gives way first.
    std::set<std::pair<int, int64_t>> waiting;
  };
  using Clients = std::map<std::string, Client, std::less<>>;

  bool SlotsFit(const Request& request) const;
  bool TokensFit(const Request& request) const;
  // Whether the tokens are the first of the client, and at most its share. They may then exceed the
  // limit: large prompts of others, each the only one of its client, must not lock a client out. The
  // sum over n clients stays below the limit times ln(n) + 1.
  bool FirstTokens(const Request& request) const;
  void GiveBack(const std::vector<RequestId>& given_up);
  Status Full(const Request& request) const;
  // Returns the next request that gives way to `request`; nullopt if none does.
  std::optional<RequestId> NextToGiveWay(const Request& request) const;
  void Count(const Place& place);
  void Uncount(const Place& place);

  const Limits limits_;
  std::unordered_map<RequestId, Place> places_;
  Clients clients_;  // those with a place
  int64_t slots_ = 0;
  int64_t tokens_ = 0;  // of waiting prompts
};

}  // namespace polysketch
