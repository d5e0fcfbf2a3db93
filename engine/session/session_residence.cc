// Where the snapshots of sessions are: in memory, in the store, or in both.
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
  const auto found = index_.find(key);
  if (found != index_.end()) found->second->leased = false;
}

bool SessionTable::IsLeased(const Entry& entry) const {
  std::lock_guard lock(mutex_);
  return entry.leased;
}

SessionTable::Iterator SessionTable::Find(const Key& key) {
  const auto found = index_.find(key);
  return found == index_.end() ? entries_.end() : found->second;
}

Result<SessionTable::Iterator> SessionTable::FindLatest(const Key& key) {
  Maintain();
  const auto& [tenant, id] = key;
  const Iterator entry = Find(key);
  if (entry == entries_.end()) {
    if (options_.store == nullptr || !IsStateKey(id)) return NoSession(id);
    return Load(key);
  }
  if (entry->is_snapshot) return NoSession(id);
  if (IsLeased(*entry)) return Status(Code::kAborted, StrCat("session ", id, " is in use"));
  if (!entry->stored) return entry;
  const auto stored = Counted("stat", options_.store->Stat(tenant, SessionKey(id)));
  if (stored.status().code() == Code::kNotFound) {  // deleted or expired elsewhere
    Remove(entry);
    return NoSession(id);
  }
  if (!stored.ok()) return stored.status();
  if (stored->revision != entry->revision) return Load(key);
  CountError("touch", options_.store->Touch(tenant, SessionKey(id), entry->head.ttl));
  return entry;
}

Result<SessionTable::Iterator> SessionTable::Load(const Key& key) {
  const auto stored = Counted("get", options_.store->Get(key.first, SessionKey(key.second)));
  if (stored.status().code() == Code::kNotFound) return NoSession(key.second);
  if (!stored.ok()) return stored.status();
  PS_ASSIGN_OR_RETURN(SessionRecord record,
                      Counted("decode", DecodeSession(AsText(stored->bytes), options_.codec)));
  Iterator entry = Find(key);
  if (entry == entries_.end()) entry = Insert({.key = key, .used = options_.now()});
  SetSnapshot(entry, std::move(record.snapshot));
  entry->head = record.head;
  entry->stored = true;
  entry->revision = stored->info.revision;
  {
    std::lock_guard lock(mutex_);
    ++stats_.loads;
    entry->leased = true;  // so that MakeRoom does not spill it
  }
  const Status status = MakeRoom();
  Release(key);
  if (status.ok()) return entry;
  DropFromMemory(entry);
  return status;
}

SessionTable::Iterator SessionTable::Insert(Entry entry) {
  entries_.push_back(std::move(entry));
  const Iterator inserted = std::prev(entries_.end());
  std::lock_guard lock(mutex_);
  index_.emplace(inserted->key, inserted);
  stats_.sessions = static_cast<int>(index_.size());
  return inserted;
}

Result<SessionTable::Iterator> SessionTable::InsertNew(Entry entry,
                                                       std::shared_ptr<const Snapshot> snapshot) {
  entry.head.created = options_.date();
  entry.used = options_.now();
  const Iterator inserted = Insert(std::move(entry));
  SetSnapshot(inserted, std::move(snapshot));
  Status status = inserted->head.durable ? Write(&*inserted) : Status();
  if (status.ok()) status = MakeRoom();
  if (status.ok()) status = CheckShare(*inserted, /*owned_before=*/false);
  if (status.ok()) return inserted;
  Remove(inserted);
  return status;
}

void SessionTable::Remove(Iterator entry) {
  SetSnapshot(entry, nullptr);
  std::lock_guard lock(mutex_);
  index_.erase(entry->key);
  entries_.erase(entry);
  stats_.sessions = static_cast<int>(index_.size());
}

void SessionTable::SetSnapshot(Iterator entry, std::shared_ptr<const Snapshot> snapshot) {
  const std::string& tenant = entry->key.first;
  MemoryLedger& ledger = ledgers_[tenant];
  memory_ -= ledger.bytes();
  ledger.Add(snapshot.get());
  ledger.Remove(entry->snapshot.get());
  memory_ += ledger.bytes();
  if (ledger.bytes() == 0) ledgers_.erase(tenant);
  entry->head.tokens = snapshot == nullptr ? 0 : snapshot->tokens();
  entry->bytes = snapshot == nullptr ? 0 : static_cast<int64_t>(snapshot->bytes());
  entry->snapshot = std::move(snapshot);
  entry->in_memory = true;
  entry->stored = false;
  options_.on_memory(memory_);
  std::lock_guard lock(mutex_);
  stats_.memory_bytes = memory_;
}

Status SessionTable::Write(Entry* entry) {
  const std::string bytes = EncodeSession({entry->head, entry->snapshot}, options_.codec);
  PS_ASSIGN_OR_RETURN(
      entry->revision,
      Counted("put", options_.store->Put(entry->key.first, SessionKey(entry->key.second), bytes,
                                         entry->head.ttl)));
  entry->stored = true;
  std::lock_guard lock(mutex_);
  ++stats_.writes;
  stats_.written_bytes += static_cast<int64_t>(bytes.size());
  return Status();
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

Status SessionTable::MakeRoom() {
  if (memory_ <= options_.memory) return Status();
  if (options_.store == nullptr) {
    return ResourceExhausted("sessions take ", memory_, " bytes of memory, and ", options_.memory,
                             " are allowed (--session-memory); with --state-store "
                             "the least recently used would go there");
  }
  Status status = Spill([this](const Entry& entry) { return AboveShare(entry.key.first); });
  const Status rest = Spill([](const Entry&) { return true; });
  if (status.ok()) status = rest;
  // Without an error, what still does not fit is leased, and moves to the store after its lease.
  return memory_ <= options_.memory ? Status() : status;
}

Status SessionTable::Spill(const std::function<bool(const Entry&)>& moves) {
  Status written;
  for (Iterator entry = entries_.begin(); entry != entries_.end() && memory_ > options_.memory;
       ++entry) {
    if (entry->snapshot == nullptr || IsLeased(*entry) || !moves(*entry)) continue;
    // After an error of the store nothing more is written; entries that the store holds can still
    // be dropped.
    if (!entry->stored && written.ok()) written = Write(&*entry);
    if (!entry->stored) continue;
    DropFromMemory(entry);
    std::lock_guard lock(mutex_);
    ++stats_.spills;
  }
  return written;
}

bool SessionTable::AboveShare(const std::string& tenant) const {
  const auto found = ledgers_.find(tenant);
  return found != ledgers_.end() && found->second.bytes() > options_.memory / ledgers_.size();
}

bool SessionTable::OwnsState(const Entry& entry) const {
  const auto found = ledgers_.find(entry.key.first);
  return found != ledgers_.end() && entry.snapshot != nullptr &&
         found->second.OwnsState(*entry.snapshot);
}

Status SessionTable::CheckShare(const Entry& entry, bool owned_before) const {
  if (options_.store != nullptr || owned_before || !OwnsState(entry)) return Status();
  const size_t held = ledgers_.at(entry.key.first).bytes();
  const size_t free = options_.memory - memory_;
  if (held <= free || held <= entry.snapshot->bytes()) return Status();
  return ResourceExhausted("the sessions of this tenant would take ", held,
                           " bytes of memory, and ", free, " of ", options_.memory,
                           " would be free (--session-memory): a tenant may hold as much as is "
                           "free; delete sessions, or try again later");
}

void SessionTable::Maintain() {
  // Sessions whose lease has ended may exceed the memory. An error is counted here and returned by
  // the next operation that needs room.
  if (options_.store != nullptr) (void)MakeRoom();
  const auto now = options_.now();
  if (now - last_sweep_ < kSweepInterval) return;
  last_sweep_ = now;
  for (Iterator entry = entries_.begin(); entry != entries_.end();) {
    const Iterator next = std::next(entry);
    if (!IsLeased(*entry) && now - entry->used >= entry->head.ttl) Remove(entry);
    entry = next;
  }
  if (options_.store == nullptr || now - last_store_sweep_ < kStoreSweepInterval) return;
  last_store_sweep_ = now;
  options_.store->Expire();
}

void SessionTable::MarkUsed(Iterator entry) {
  entry->used = options_.now();
  entries_.splice(entries_.end(), entries_, entry);
}

}  // namespace polysketch
