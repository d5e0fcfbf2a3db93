// Where sessions are: in memory, in the store, or in both.

#include "base/logging.h"
#include "engine/session/session_keys.h"
#include "engine/session/session_table.h"
#include "engine/store/state_key.h"

namespace polysketch {
namespace {

constexpr std::chrono::seconds kSweepInterval{1};
constexpr std::chrono::seconds kStoreSweepInterval{60};

}  // namespace

void SessionTable::Flush() {
  if (options_.store == nullptr) return;
  write_through_ = true;
  for (Entry& entry : entries_) {
    if (entry.stored || entry.is_snapshot) continue;
    const Status status = Write(&entry);
    if (!status.ok()) {
      LogError("session_not_written", {{"session", entry.key.second}, {"why", status.message()}});
    }
  }
}

void SessionTable::Release(const Key& key) {
  std::lock_guard lock(mutex_);
  const auto found = places_.find(key);
  if (found != places_.end()) found->second->busy = false;
}

SessionTable::Place SessionTable::Find(const Key& key) {
  const auto found = places_.find(key);
  return found == places_.end() ? entries_.end() : found->second;
}

Result<SessionTable::Place> SessionTable::Look(const Key& key) {
  Tidy();
  Place place = Find(key);
  if (place == entries_.end()) {
    if (options_.store == nullptr || !IsStateKey(key.second)) return NoSession(key.second);
    return Load(key);
  }
  if (place->is_snapshot) return NoSession(key.second);
  {
    std::lock_guard lock(mutex_);
    if (place->busy) return Status(Code::kAborted, StrCat("session ", key.second, " is in use"));
  }
  if (!place->stored) return place;
  const Result<StoredInfo> stored =
      Counted("stat", options_.store->Stat(key.first, SessionKey(key.second)));
  if (stored.status().code() == Code::kNotFound) {  // deleted or expired elsewhere
    Remove(place);
    return NoSession(key.second);
  }
  if (!stored.ok()) return stored.status();
  if (stored->revision != place->revision) return Load(key);
  CountError("touch", options_.store->Touch(key.first, SessionKey(key.second), place->ttl));
  return place;
}

Result<SessionTable::Place> SessionTable::Load(const Key& key) {
  const auto stored = Counted("get", options_.store->Get(key.first, SessionKey(key.second)));
  if (stored.status().code() == Code::kNotFound) return NoSession(key.second);
  if (!stored.ok()) return stored.status();
  PS_ASSIGN_OR_RETURN(SessionRecord record,
                      Counted("decode", DecodeSession(AsText(stored->bytes), options_.codec)));
  Place place = Find(key);
  if (place == entries_.end()) {
    Entry entry;
    entry.key = key;
    entry.used = options_.now();
    place = Insert(std::move(entry));
  }
  place->durable = record.head.durable;
  place->ttl = record.head.ttl;
  place->created = record.head.created;
  SetSnapshot(place, std::move(record.snapshot));
  place->stored = true;
  place->revision = stored->info.revision;
  {
    std::lock_guard lock(mutex_);
    ++stats_.loads;
    place->busy = true;  // not to be spilled to make room for itself
  }
  const Status status = MakeRoom();
  Release(key);
  if (status.ok()) return place;
  LeaveToStore(place);
  return status;
}

SessionTable::Place SessionTable::Insert(Entry entry) {
  entries_.push_back(std::move(entry));
  const Place place = std::prev(entries_.end());
  std::lock_guard lock(mutex_);
  places_.emplace(place->key, place);
  stats_.sessions = static_cast<int>(places_.size());
  return place;
}

void SessionTable::Remove(Place place) {
  SetSnapshot(place, nullptr);
  std::lock_guard lock(mutex_);
  places_.erase(place->key);
  entries_.erase(place);
  stats_.sessions = static_cast<int>(places_.size());
}

void SessionTable::SetSnapshot(Place place, std::shared_ptr<const Snapshot> snapshot) {
  ledger_.Add(snapshot.get());
  ledger_.Remove(place->snapshot.get());
  place->snapshot = std::move(snapshot);
  place->tokens = place->snapshot == nullptr ? 0 : place->snapshot->tokens();
  place->bytes = place->snapshot == nullptr ? 0 : static_cast<int64_t>(place->snapshot->bytes());
  place->in_memory = true;
  place->stored = false;
  options_.on_memory(ledger_.bytes());
  std::lock_guard lock(mutex_);
  stats_.memory_bytes = ledger_.bytes();
}

Status SessionTable::Write(Entry* entry) {
  const std::string bytes =
      EncodeSession({{entry->durable, entry->ttl, entry->created, entry->tokens}, entry->snapshot},
                    options_.codec);
  PS_ASSIGN_OR_RETURN(
      entry->revision,
      Counted("put", options_.store->Put(entry->key.first, SessionKey(entry->key.second), bytes,
                                         entry->ttl)));
  entry->stored = true;
  std::lock_guard lock(mutex_);
  ++stats_.writes;
  stats_.written_bytes += static_cast<int64_t>(bytes.size());
  return Status();
}

void SessionTable::LeaveToStore(Place place) {
  const int64_t tokens = place->tokens;
  const int64_t bytes = place->bytes;
  SetSnapshot(place, nullptr);
  place->tokens = tokens;
  place->bytes = bytes;
  place->in_memory = false;
  place->stored = true;
}

Status SessionTable::MakeRoom() {
  Status written;
  for (Place place = entries_.begin(); place != entries_.end() && ledger_.bytes() > options_.memory;
       ++place) {
    {
      std::lock_guard lock(mutex_);
      if (place->busy) continue;
    }
    if (place->snapshot == nullptr || place->is_snapshot || options_.store == nullptr) continue;
    // Of a store that fails no more is asked; what it has can go.
    if (!place->stored && written.ok()) written = Write(&*place);
    if (!place->stored) continue;
    LeaveToStore(place);
    std::lock_guard lock(mutex_);
    ++stats_.spills;
  }
  if (!written.ok() && ledger_.bytes() > options_.memory) return written;
  // With a store the rest is in use, and goes when it is not.
  if (ledger_.bytes() <= options_.memory || options_.store != nullptr) return Status();
  return ResourceExhausted("sessions take ", ledger_.bytes(), " bytes of memory, and ",
                           options_.memory,
                           " are allowed (--session-memory); with --state-store "
                           "the least recently used would go there");
}

void SessionTable::Tidy() {
  // Those that were in use when others needed room, and are not any more. A failure is counted, and
  // whoever asks for room next is told.
  if (options_.store != nullptr) (void)MakeRoom();
  const auto now = options_.now();
  if (now - last_sweep_ < kSweepInterval) return;
  last_sweep_ = now;
  for (Place place = entries_.begin(); place != entries_.end();) {
    const Place next = std::next(place);
    bool busy = false;
    {
      std::lock_guard lock(mutex_);
      busy = place->busy;
    }
    if (!busy && now - place->used >= place->ttl) Remove(place);
    place = next;
  }
  if (options_.store == nullptr || now - last_store_sweep_ < kStoreSweepInterval) return;
  last_store_sweep_ = now;
  options_.store->Expire();
}

}  // namespace polysketch
