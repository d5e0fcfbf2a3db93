#include "server/openai/stored_responses.h"

#include <algorithm>
#include <iterator>

namespace polysketch {
namespace {

// Of an entry beside its texts: nodes of the containers, and the key twice.
constexpr int64_t kEntryBytes = 512;

}  // namespace

void StoredResponses::Keep(const Key& key, const std::string& holder, StoredResponse response) {
  const int64_t bytes = kEntryBytes + std::ssize(response.body) + std::ssize(response.input) +
                        2 * (std::ssize(key.first) + std::ssize(key.second));
  std::lock_guard lock(mutex_);
  RemoveExpired();
  if (const auto found = places_.find(key); found != places_.end()) Remove(found->second);
  if (bytes > limit_ / 4) return;
  while (bytes_ + bytes > limit_) {
    const auto most =
        std::ranges::max_element(held_, {}, [](const auto& held) { return held.second; });
    Remove(std::ranges::find(entries_, most->first, &Entry::holder));
  }
  response.body.shrink_to_fit();
  response.input.shrink_to_fit();
  auto kept = std::make_shared<StoredResponse>(std::move(response));
  entries_.push_back({key, holder, std::move(kept), bytes, now_()});
  places_.emplace(key, std::prev(entries_.end()));
  held_[holder] += bytes;
  bytes_ += bytes;
}

StoredResponses::Pointer StoredResponses::Find(const Key& key) {
  std::lock_guard lock(mutex_);
  RemoveExpired();
  const auto found = places_.find(key);
  return found == places_.end() ? nullptr : found->second->response;
}

bool StoredResponses::Remove(const Key& key) {
  std::lock_guard lock(mutex_);
  const auto found = places_.find(key);
  if (found == places_.end()) return false;
  Remove(found->second);
  return true;
}

std::vector<StoredResponses::Kept> StoredResponses::NewestFirst() const {
  std::vector<Kept> kept;
  std::lock_guard lock(mutex_);
  const Clock::time_point now = now_();
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(entry->made + ttl_ - now);
    if (left.count() > 0) kept.push_back({entry->key, entry->response, left});
  }
  return kept;
}

StoredResponses::Stats StoredResponses::stats() const {
  std::lock_guard lock(mutex_);
  return {.responses = std::ssize(places_), .bytes = bytes_, .limit = limit_};
}

void StoredResponses::Remove(Entries::iterator entry) {
  bytes_ -= entry->bytes;
  const auto held = held_.find(entry->holder);
  held->second -= entry->bytes;
  if (held->second == 0) held_.erase(held);
  places_.erase(entry->key);
  entries_.erase(entry);
}

void StoredResponses::RemoveExpired() {
  const Clock::time_point now = now_();
  while (!entries_.empty() && now - entries_.front().made >= ttl_) Remove(entries_.begin());
}

}  // namespace polysketch
