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
  if (const auto found = places_.find(key); found != places_.end()) Remove(found);
  if (bytes > limit_ / 4) return;
  MakeRoom(bytes);
  const auto at = holders_.try_emplace(holder).first;
  response.body.shrink_to_fit();
  response.input.shrink_to_fit();
  at->second.entries.push_back({.key = key,
                                .response = std::make_shared<StoredResponse>(std::move(response)),
                                .bytes = bytes,
                                .made = now_()});
  at->second.bytes += bytes;
  bytes_ += bytes;
  places_.emplace(key, Place{at, std::prev(at->second.entries.end())});
}

StoredResponses::Pointer StoredResponses::Find(const Key& key) {
  std::lock_guard lock(mutex_);
  RemoveExpired();
  const auto found = places_.find(key);
  return found == places_.end() ? nullptr : found->second.entry->response;
}

std::vector<StoredResponses::Pointer> StoredResponses::Conversation(const Key& key) {
  std::vector<Pointer> responses;
  std::lock_guard lock(mutex_);
  RemoveExpired();
  // A response continues an older one, so the chain ends.
  for (auto at = places_.find(key); at != places_.end();
       at = places_.find({key.first, responses.back()->previous})) {
    responses.push_back(at->second.entry->response);
  }
  return responses;
}

bool StoredResponses::Remove(const Key& key) {
  std::lock_guard lock(mutex_);
  const auto found = places_.find(key);
  if (found == places_.end()) return false;
  Remove(found);
  return true;
}

StoredResponses::Stats StoredResponses::stats() const {
  std::lock_guard lock(mutex_);
  return {.responses = std::ssize(places_), .bytes = bytes_, .limit = limit_};
}

void StoredResponses::Remove(std::map<Key, Place>::iterator place) {
  const auto [holder, entry] = place->second;
  holder->second.bytes -= entry->bytes;
  bytes_ -= entry->bytes;
  holder->second.entries.erase(entry);
  if (holder->second.entries.empty()) holders_.erase(holder);
  places_.erase(place);
}

void StoredResponses::RemoveExpired() {
  const Clock::time_point now = now_();
  for (auto at = holders_.begin(); at != holders_.end();) {
    const auto holder = at++;  // its last entry takes it along
    for (size_t left = holder->second.entries.size(); left > 0; --left) {
      const Entry& oldest = holder->second.entries.front();
      if (now - oldest.made < ttl_) break;
      Remove(places_.find(oldest.key));
    }
  }
}

void StoredResponses::MakeRoom(int64_t bytes) {
  while (bytes_ + bytes > limit_) {
    const auto most = std::ranges::max_element(
        holders_, {}, [](const auto& holder) { return holder.second.bytes; });
    Remove(places_.find(most->second.entries.front().key));
  }
}

}  // namespace polysketch
