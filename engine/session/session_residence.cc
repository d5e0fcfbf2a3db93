// Where the snapshots of sessions are: in memory, in the store, or in both.
#include <optional>
#include <vector>

#include "base/logging.h"
#include "base/running_work.h"
#include "engine/session/session_keys.h"
#include "engine/session/session_table.h"
#include "engine/store/state_key.h"

namespace polysketch {
namespace {

constexpr std::chrono::seconds kSweepInterval{1};
constexpr std::chrono::seconds kStoreSweepInterval{60};
constexpr std::chrono::seconds kHeldWait{1};
// Bytes that a client may hold for a byte that is free.
constexpr size_t kSessionShareOfFree = 4;

}  // namespace

void SessionTable::Flush() {
  if (options_.store == nullptr) return;
  std::vector<Key> keys;
  {
    std::lock_guard lock(mutex_);
    write_through_ = true;
    for (const Entry& entry : entries_) {
      if (!entry.stored && !entry.is_snapshot) keys.push_back(entry.key);
    }
  }
  for (const Key& key : keys) FlushOne(key);
}

void SessionTable::FlushOne(const Key& key) {
  Status status;
  {
    Lock lock(mutex_);
    const Iterator entry = FindFree(&lock, key);
    if (entry == entries_.end() || entry->stored) return;
    Hold hold(this, entry);
    status = Write(&lock, entry);
  }
  if (status.ok()) return;
  LogError("session_not_written", {{"session", key.second}, {"why", status.message()}});
}

void SessionTable::Release(const Key& key) {
  std::lock_guard lock(mutex_);
  const auto found = index_.find(key);
  if (found != index_.end()) found->second->leased = false;
}

SessionTable::Iterator SessionTable::Find(const Key& key) {
  const auto found = index_.find(key);
  return found == index_.end() ? entries_.end() : found->second;
}

SessionTable::Iterator SessionTable::FindFree(Lock* lock, const Key& key) {
  Iterator entry = Find(key);
  while (entry != entries_.end() && entry->held) {
    free_.wait_for(*lock, kHeldWait);
    RunningWork::Moved();  // the thread that holds it is the one that may be stuck
    entry = Find(key);
  }
  return entry;
}

Result<SessionTable::Iterator> SessionTable::FindLatest(Lock* lock, const Key& key,
                                                        const std::string& client) {
  const std::string& id = key.second;
  const Iterator entry = FindFree(lock, key);
  if (entry == entries_.end()) {
    if (options_.store == nullptr || !IsStateKey(id)) return NoSession(id);
    return Load(lock, key, client);
  }
  if (entry->is_snapshot) return NoSession(id);
  if (entry->leased) return InUse(id);
  if (!entry->stored) return entry;
  Hold hold(this, entry);
  const std::chrono::milliseconds ttl = entry->head.ttl;
  const auto stored = Unlocked(
      lock, [&] { return Counted("stat", options_.store->Renew(key.first, SessionKey(id), ttl)); });
  hold.End();
  if (stored.status().code() == Code::kNotFound) {  // deleted or expired elsewhere
    Forget(entry);
    return NoSession(id);
  }
  if (!stored.ok()) return stored.status();
  if (stored->revision != entry->revision) return Load(lock, key, client);
  return entry;
}

Result<SessionTable::Iterator> SessionTable::Load(Lock* lock, const Key& key,
                                                  const std::string& client) {
  Iterator entry = Find(key);
  std::optional<Hold> hold;
  if (entry != entries_.end()) hold.emplace(this, entry);
  uint64_t revision = 0;
  Result<SessionRecord> record = Unlocked(lock, [&]() -> Result<SessionRecord> {
    PS_ASSIGN_OR_RETURN(const StateStore::Entry stored,
                        Counted("get", options_.store->Get(key.first, SessionKey(key.second))));
    revision = stored.info.revision;
    return Counted("decode", DecodeSession(AsText(stored.bytes), options_.codec));
  });
  if (record.status().code() == Code::kNotFound) {
    if (hold.has_value()) {  // deleted or expired elsewhere
      hold->End();
      Forget(entry);
    }
    return NoSession(key.second);
  }
  if (!record.ok()) return record.status();
  if (entry == entries_.end()) {
    // Another operation may have loaded it meanwhile.
    if (Find(key) != entries_.end()) return FindLatest(lock, key, client);
    entry = Insert({.key = key, .client = client, .used = options_.now()});
    AddOnlyStored({key.first, false}, -1);
    hold.emplace(this, entry);
  }
  SetSnapshot(entry, std::move(record->snapshot), client);
  entry->head = record->head;
  entry->stored = true;
  entry->in_store = true;
  entry->revision = revision;
  ++stats_.loads;
  const Status status = MakeRoom(lock);
  hold->End();
  if (status.ok()) return entry;
  DropFromMemory(entry);
  return status;
}

SessionTable::Iterator SessionTable::Insert(Entry entry) {
  entries_.push_back(std::move(entry));
  const Iterator inserted = std::prev(entries_.end());
  index_.emplace(inserted->key, inserted);
  stats_.sessions = static_cast<int>(index_.size());
  return inserted;
}

void SessionTable::Remove(Iterator entry) {
  SetSnapshot(entry, nullptr);
  index_.erase(entry->key);
  entries_.erase(entry);
  stats_.sessions = static_cast<int>(index_.size());
}

void SessionTable::Forget(Iterator entry) {
  if (entry->stored) AddOnlyStored({entry->key.first, entry->is_snapshot}, 1);
  Remove(entry);
}

void SessionTable::SetSnapshot(Iterator entry, std::shared_ptr<const Snapshot> snapshot,
                               std::string client) {
  memory_.Add(snapshot.get());
  memory_.Remove(entry->snapshot.get());
  ledgers_[client].Add(snapshot.get());
  ledgers_[entry->client].Remove(entry->snapshot.get());
  for (const std::string& one : {client, entry->client}) {
    if (const auto ledger = ledgers_.find(one);
        ledger != ledgers_.end() && ledger->second.bytes() == 0)
      ledgers_.erase(ledger);
  }
  entry->client = std::move(client);
  entry->head.tokens = snapshot == nullptr ? 0 : snapshot->tokens();
  entry->bytes = snapshot == nullptr ? 0 : static_cast<int64_t>(snapshot->bytes());
  entry->snapshot = std::move(snapshot);
  entry->in_memory = true;
  entry->stored = false;
  options_.on_memory(memory_.bytes());
  stats_.memory_bytes = memory_.bytes();
}

Result<uint64_t> SessionTable::WriteRecord(const Key& key, const SessionRecord& record) {
  std::string bytes = EncodeSession(record, options_.codec);
  const auto size = static_cast<int64_t>(bytes.size());
  PS_ASSIGN_OR_RETURN(const uint64_t revision,
                      Counted("put", options_.store->Put(key.first, SessionKey(key.second),
                                                         std::move(bytes), record.head.ttl)));
  std::lock_guard lock(mutex_);
  ++stats_.writes;
  stats_.written_bytes += size;
  return revision;
}

Status SessionTable::Write(Lock* lock, Iterator entry) {
  const Key key = entry->key;
  const SessionRecord record = {entry->head, entry->snapshot};
  const Result<uint64_t> written = Unlocked(lock, [&] { return WriteRecord(key, record); });
  entry->stored = written.ok();
  entry->in_store |= written.ok() || IsOutcomeUnknown(written.status());
  if (written.ok()) entry->revision = *written;
  return written.status();
}

void SessionTable::DropFromMemory(Iterator entry) {
  const int64_t tokens = entry->head.tokens;
  const int64_t bytes = entry->bytes;
  SetSnapshot(entry, nullptr);
  entry->head.tokens = tokens;
  entry->bytes = bytes;
  entry->in_memory = false;
  entry->stored = true;
}

Status SessionTable::MakeRoom(Lock* lock) {
  if (memory_.bytes() <= options_.memory) return Status();
  if (options_.store == nullptr) {
    return ResourceExhausted("sessions take ", memory_.bytes(), " bytes of memory, and ",
                             options_.memory,
                             " are allowed (--session-memory); with --state-store "
                             "the least recently used would go there")
        .WithReason(Reason::kSessionMemoryFull);
  }
  Status status = Spill(lock, [this](const Entry& entry) { return AboveShare(entry.client); });
  const Status rest = Spill(lock, [](const Entry&) { return true; });
  if (status.ok()) status = rest;
  // Without an error, what still does not fit is leased, and moves to the store after its lease.
  if (status.ok() || memory_.bytes() <= options_.memory) return Status();
  // The outcome of a write of other sessions is none of the caller's.
  return IsOutcomeUnknown(status) ? Unavailable(status.message()) : status;
}

Status SessionTable::Spill(Lock* lock, const std::function<bool(const Entry&)>& moves) {
  Status written;
  for (Iterator entry = entries_.begin();
       entry != entries_.end() && memory_.bytes() > options_.memory; ++entry) {
    if (entry->snapshot == nullptr || entry->leased || entry->held || !moves(*entry)) continue;
    // After an error of the store nothing more is written; entries that the store holds can still
    // be dropped.
    if (!entry->stored && written.ok()) {
      Hold hold(this, entry);  // keeps `entry` in the list while the lock is released
      written = Write(lock, entry);
    }
    if (!entry->stored) continue;
    DropFromMemory(entry);
    ++stats_.spills;
  }
  return written;
}

bool SessionTable::AboveShare(const std::string& client) const {
  const auto found = ledgers_.find(client);
  return found != ledgers_.end() && found->second.bytes() > options_.memory / ledgers_.size();
}

bool SessionTable::OwnsState(const Entry& entry) const {
  const auto found = ledgers_.find(entry.client);
  return found != ledgers_.end() && entry.snapshot != nullptr &&
         found->second.OwnsState(*entry.snapshot);
}

Status SessionTable::CheckShare(const Entry& entry, bool owned_before) const {
  if (options_.store != nullptr || owned_before || !OwnsState(entry)) return Status();
  const size_t held = ledgers_.at(entry.client).bytes();
  const size_t free = options_.memory - memory_.bytes();
  if (held <= kSessionShareOfFree * free || held <= entry.snapshot->bytes()) return Status();
  return ResourceExhausted(
             "the sessions of this client would take ", held, " bytes of memory, and ", free,
             " of ", options_.memory, " would be free (--session-memory): a client may hold ",
             kSessionShareOfFree, " times what is free; delete sessions, or try again later")
      .WithReason(Reason::kSessionMemoryFull);
}

void SessionTable::Sweep() {
  const auto now = options_.now();
  if (now - last_sweep_ < kSweepInterval) return;
  last_sweep_ = now;
  for (Iterator entry = entries_.begin(); entry != entries_.end();) {
    const Iterator next = std::next(entry);
    if (!entry->leased && !entry->held && now - entry->used >= entry->head.ttl) Forget(entry);
    entry = next;
  }
  ForgetCounts(now);
}

void SessionTable::Maintain() {
  {
    Lock lock(mutex_);
    // An error is counted here and returned by the next operation that needs room.
    if (options_.store != nullptr) (void)MakeRoom(&lock);
    Sweep();
    const auto now = options_.now();
    if (options_.store == nullptr || now - last_store_sweep_ < kStoreSweepInterval) return;
    last_store_sweep_ = now;
  }
  options_.store->Expire();
}

void SessionTable::MarkUsed(Iterator entry) {
  entry->used = options_.now();
  entries_.splice(entries_.end(), entries_, entry);
}

}  // namespace polysketch
