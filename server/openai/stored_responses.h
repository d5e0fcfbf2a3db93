// What GET of stored responses returns: their texts, in memory, beside the sessions, which hold
// states alone. A drain writes them to the state store (response_store.h).
//
// Bounded in bytes: where there is no room the oldest texts of the client that holds the most give
// way. A response whose text has gone can still be continued.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace polysketch {

struct StoredResponse {
  std::string body;           // the response, as JSON
  std::string input;          // the items of its own input, an array as JSON; each has an id
  std::string previous = {};  // the session of the response that it continues; empty: none
};

// Thread-safe.
class StoredResponses {
 public:
  using Clock = std::chrono::steady_clock;
  using Key = std::pair<std::string, std::string>;  // tenant, session
  using Pointer = std::shared_ptr<const StoredResponse>;
  struct Stats {
    int64_t responses = 0;
    int64_t bytes = 0;
    int64_t limit = 0;
  };
  struct Kept {
    Key key;
    Pointer response;
    std::chrono::milliseconds ttl;  // the rest of it
  };

  // `limit`: bytes; 0: nothing is kept. `ttl`: how long a response is kept.
  StoredResponses(int64_t limit, std::chrono::milliseconds ttl,
                  std::function<Clock::time_point()> now = Clock::now)
      : limit_(limit), ttl_(ttl), now_(std::move(now)) {}

  // Keeps a response of the client `holder`, unless it takes more than a quarter of the limit.
  void Keep(const Key& key, const std::string& holder, StoredResponse response);
  // Null: it is not kept.
  Pointer Find(const Key& key);
  // Whether it was kept.
  bool Remove(const Key& key);
  std::vector<Kept> NewestFirst() const;
  Stats stats() const;

 private:
  struct Entry {
    Key key;
    std::string holder;
    Pointer response;
    int64_t bytes = 0;
    Clock::time_point made = {};
  };
  using Entries = std::list<Entry>;

  // mutex_ is held in the functions below.
  void Remove(Entries::iterator entry);
  void RemoveExpired();

  const int64_t limit_;
  const std::chrono::milliseconds ttl_;
  const std::function<Clock::time_point()> now_;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  Entries entries_;  // the oldest first
  std::map<Key, Entries::iterator> places_;
  std::map<std::string, int64_t> held_;  // bytes by holder
  int64_t bytes_ = 0;
};

}  // namespace polysketch
