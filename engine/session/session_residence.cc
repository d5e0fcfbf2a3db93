// Where the snapshots of sessions are: in memory, in the store, or in both.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
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

void SessionTable::Release(SessionLease* lease) {
  std::lock_guard lock(mutex_);
  SetReserved(lease, 0);
  const auto found = index_.find(lease->key_);
  if (found != index_.end()) found->second->leased = false;
}

void SessionTable::SetReserved(SessionLease* lease, int64_t bytes) {
  const int64_t more = bytes - std::exchange(lease->reserved_, bytes);
  if (more == 0) return;
  shares_.Add(lease->principal_, more);
  reserved_ += more;
  options_.on_memory(memory_.bytes() + static_cast<size_t>(reserved_));
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
                                                        const Principal& principal) {
  const std::string& id = key.second;
  const Iterator entry = FindFree(lock, key);
  if (entry == entries_.end()) {
    if (options_.store == nullptr || !IsStateKey(id)) return NoSession(id);
    return Load(lock, key, principal);
  }
  if (entry->is_snapshot) return NoSession(id);
  if (entry->leased) return InUse(id);
  if (!entry->stored) return entry;
  Hold hold(this, entry);
  const std::chrono::milliseconds ttl = entry->head.ttl;
  StoredBlocks blocks = entry->blocks;
  const auto stored = Unlocked(lock, [&]() -> Result<StoredInfo> {
    BlockEntries entries(options_.store, options_.codec, key.first);
    PS_RETURN_IF_ERROR(Counted("touch", entries.Touch(&blocks, ttl, options_.now())));
    return Counted("stat", options_.store->Renew(key.first, SessionKey(id), ttl));
  });
  entry->blocks = std::move(blocks);
  hold.End();
  if (stored.status().code() == Code::kNotFound) {  // deleted or expired elsewhere
    Forget(entry);
    return NoSession(id);
  }
  if (!stored.ok()) return stored.status();
  if (stored->revision != entry->revision) return Load(lock, key, principal);
  return entry;
}

Result<SessionTable::Iterator> SessionTable::Load(Lock* lock, const Key& key,
                                                  const Principal& principal) {
  Iterator entry = Find(key);
  std::optional<Hold> hold;
  if (entry != entries_.end()) hold.emplace(this, entry);
  Result<StoredRecord> stored = Unlocked(lock, [&] { return ReadRecord(key); });
  if (stored.status().code() == Code::kNotFound) {
    if (hold.has_value()) {  // deleted or expired elsewhere
      hold->End();
      Forget(entry);
    }
    return NoSession(key.second);
  }
  if (!stored.ok()) return stored.status();
  SessionRecord& record = stored->record;
  if (entry == entries_.end()) {
    // Another operation may have loaded it meanwhile.
    if (Find(key) != entries_.end()) return FindLatest(lock, key, principal);
    entry = Insert({.key = key, .principal = principal, .used = options_.now()});
    AddOnlyStored({key.first, false}, -1);
    hold.emplace(this, entry);
  }
  SetSnapshot(entry, std::move(record.snapshot), principal);
  entry->head = record.head;
  entry->stored = true;
  entry->in_store = true;
  entry->revision = stored->revision;
  entry->blocks = {stored->revision, std::move(record.groups), std::nullopt};
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
  PS_CHECK(index_.emplace(inserted->key, inserted).second) << inserted->key.second;
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

void SessionTable::ChangeHeld(const Principal& principal, const Snapshot* snapshot,
                              void (MemoryLedger::*change)(const Snapshot*)) {
  (memory_.*change)(snapshot);
  MemoryLedger& ledger = ledgers_[principal];
  const auto before = static_cast<int64_t>(ledger.bytes());
  (ledger.*change)(snapshot);
  shares_.Add(principal, static_cast<int64_t>(ledger.bytes()) - before);
  if (ledger.bytes() == 0) ledgers_.erase(principal);
}

void SessionTable::SetSnapshot(Iterator entry, std::shared_ptr<const Snapshot> snapshot,
                               Principal principal) {
  ChangeHeld(principal, snapshot.get(), &MemoryLedger::Add);
  ChangeHeld(entry->principal, entry->snapshot.get(), &MemoryLedger::Remove);
  entry->principal = std::move(principal);
  entry->head.tokens = snapshot == nullptr ? 0 : snapshot->tokens();
  entry->bytes = snapshot == nullptr ? 0 : static_cast<int64_t>(snapshot->bytes());
  entry->snapshot = std::move(snapshot);
  entry->in_memory = true;
  entry->stored = false;
  options_.on_memory(memory_.bytes() + static_cast<size_t>(reserved_));
  stats_.memory_bytes = memory_.bytes();
}

Result<uint64_t> SessionTable::WriteRecord(const Key& key, SessionRecord record,
                                           StoredBlocks* blocks) {
  const SnapshotCodec& codec = options_.codec;
  BlockEntries entries(options_.store, codec, key.first);
  const SavedState* const state =
      record.snapshot == nullptr ? nullptr : record.snapshot->state.get();
  if (!blocks->groups.empty()) {
    // Another replica may have written the session, or deleted it, and with it the blocks.
    const auto now = Counted("stat", options_.store->Stat(key.first, SessionKey(key.second)));
    if (!now.ok() && now.status().code() != Code::kNotFound) return now.status();
    if (!now.ok() || now->revision != blocks->revision) *blocks = {};
  }
  BlockEntries::Written written;
  if (state != nullptr && codec.layout.FullBlocks(state->position) > 0 &&
      codec.layout.Fits(*state)) {
    PS_ASSIGN_OR_RETURN(
        written, Counted("put", entries.Write(*state, *blocks, record.head.ttl, options_.now())));
  }
  record.groups = written.blocks.groups;
  std::string bytes = EncodeSession(record, codec, record.groups.empty() ? nullptr : &written.rest);
  const int64_t size = std::ssize(bytes) + CountBytes(written.added);
  Result<uint64_t> revision = Counted(
      "put",
      options_.store->Put(key.first, SessionKey(key.second), std::move(bytes), record.head.ttl));
  if (!revision.ok()) {
    // A record of which it is unknown whether it was written may name them.
    if (!IsOutcomeUnknown(revision.status())) entries.Delete(written.added);
    return revision;
  }
  entries.Delete(blocks->groups, record.groups);
  *blocks = std::move(written.blocks);
  blocks->revision = *revision;
  std::lock_guard lock(mutex_);
  ++stats_.writes;
  stats_.written_bytes += size;
  return revision;
}

Result<SessionTable::StoredRecord> SessionTable::ReadRecord(const Key& key) {
  BlockEntries entries(options_.store, options_.codec, key.first);
  bool missing = false;
  const BlockReader reader = {&options_.codec.layout, [&](const BlockGroup& group) {
                                return Counted("get", entries.Read(group, &missing));
                              }};
  StoredRecord read;
  while (true) {
    PS_ASSIGN_OR_RETURN(const StateStore::Entry stored,
                        Counted("get", options_.store->Get(key.first, SessionKey(key.second))));
    // A block that is missing has been replaced together with the record, or it is lost.
    const bool replaced = stored.info.revision != read.revision;
    read.revision = stored.info.revision;
    Result<SessionRecord> record =
        Counted("decode", DecodeSession(AsText(stored.bytes), options_.codec, &reader));
    if (!record.ok() && std::exchange(missing, false) && replaced) continue;
    if (!record.ok()) return record.status();
    read.record = *std::move(record);
    return read;
  }
}

Status SessionTable::DeleteRecord(const Key& key) {
  const auto& [tenant, id] = key;
  // The record may be another replica's.
  std::vector<BlockGroup> groups;
  if (options_.codec.layout.has_blocks()) {
    const auto info = options_.store->Stat(tenant, SessionKey(id));
    const auto head = info.ok() ? DecodeSessionHead(info->head) : info.status();
    if (head.ok() && head->block_bytes > 0) {
      const auto stored = options_.store->Get(tenant, SessionKey(id));
      auto named = stored.ok() ? GroupsOfSession(AsText(stored->bytes)) : stored.status();
      if (named.ok()) groups = *std::move(named);
    }
  }
  Status status = Counted("delete", options_.store->Delete(tenant, SessionKey(id)));
  if (status.ok()) BlockEntries(options_.store, options_.codec, tenant).Delete(groups);
  return status;
}

Status SessionTable::Write(Lock* lock, Iterator entry) {
  const Key key = entry->key;
  const SessionRecord record = {entry->head, entry->snapshot};
  StoredBlocks blocks = entry->blocks;
  const Result<uint64_t> written =
      Unlocked(lock, [&] { return WriteRecord(key, record, &blocks); });
  entry->stored = written.ok();
  entry->in_store |= written.ok() || IsOutcomeUnknown(written.status());
  if (written.ok()) {
    entry->revision = *written;
    entry->blocks = std::move(blocks);
  }
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

Status SessionTable::MakeRoom(Lock* lock, const Entry* except) {
  if (memory_.bytes() <= options_.memory) return Status();
  if (options_.store == nullptr) {
    const Principal needs = except == nullptr ? Principal() : except->principal;
    return MakeShare(needs, 0, /*grows=*/true, except);
  }
  const auto memory = static_cast<int64_t>(options_.memory);
  Status status =
      Spill(lock, [&](const Entry& entry) { return shares_.AboveEqual(entry.principal, memory); });
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

bool SessionTable::OwnsState(const Entry& entry) const {
  const auto found = ledgers_.find(entry.principal);
  return found != ledgers_.end() && entry.snapshot != nullptr &&
         found->second.OwnsState(*entry.snapshot);
}

int64_t SessionTable::BytesToRemove(const Entry& entry) const {
  return static_cast<int64_t>(ledgers_.at(entry.principal).BytesToRemove(*entry.snapshot));
}

Status SessionTable::CheckShare(const Entry& entry, bool owned_before) {
  if (options_.store != nullptr || owned_before || !OwnsState(entry)) return Status();
  const int64_t bytes = BytesToRemove(entry),
                all = static_cast<int64_t>(memory_.BytesToRemove(*entry.snapshot));
  shares_.Remove(entry.principal, bytes);
  reserved_ -= all;  // as if the entry were not there yet
  Status status = MakeShare(entry.principal, bytes, /*grows=*/false, &entry);
  reserved_ += all;
  shares_.Add(entry.principal, bytes);
  return status;
}

Status SessionTable::Reserve(SessionLease* lease, int64_t tokens) {
  if (options_.store != nullptr || options_.state_bytes == nullptr) return Status();
  std::lock_guard lock(mutex_);
  Sweep();
  const Entry& entry = *Find(lease->key_);
  const bool owns = entry.principal == lease->principal_ && OwnsState(entry);
  const auto bytes = static_cast<int64_t>(sizeof(Snapshot) + options_.state_bytes(tokens));
  const int64_t more = std::max<int64_t>(bytes - (owns ? BytesToRemove(entry) : 0), 0);
  PS_RETURN_IF_ERROR(MakeShare(lease->principal_, more, owns, &entry));
  SetReserved(lease, more);
  return Status();
}

bool SessionTable::Fits(const Principal& principal, int64_t more, bool grows) const {
  const int64_t free = free_memory();
  return grows ? more <= free : shares_.Fits(principal, more, free, /*first=*/true);
}

void SessionTable::TakeOff(Iterator entry, std::vector<Iterator>* taken) {
  ChangeHeld(entry->principal, entry->snapshot.get(), &MemoryLedger::Remove);
  taken->push_back(entry);
}

void SessionTable::PutBack(const std::vector<Iterator>& taken) {
  for (const Iterator entry : taken)
    ChangeHeld(entry->principal, entry->snapshot.get(), &MemoryLedger::Add);
}

Status SessionTable::MakeShare(const Principal& principal, int64_t more, bool grows,
                               const Entry* entry) {
  if (more > static_cast<int64_t>(options_.memory)) {
    return InvalidArgument("session: expected a state of at most ", options_.memory,
                           " bytes (--session-memory), found one of ", more);
  }
  // What is refused in the end evicts none.
  std::vector<Iterator> victims;
  bool fits = Fits(principal, more, grows);
  while (!fits) {
    const Iterator victim = Evictable(principal, more, entry, victims);
    if (victim == entries_.end()) break;
    TakeOff(victim, &victims);
    fits = Fits(principal, more, grows);
  }
  PutBack(victims);
  if (!fits) {
    Status status = ResourceExhausted("sessions take ", options_.memory - free_memory(),
                                      " bytes of memory, of ", options_.memory,
                                      " (--session-memory), those of this client ",
                                      shares_.Of(principal).principal, ", and ", more,
                                      " more are needed: a client may hold ", kShareOfFree,
                                      " times what is free; delete sessions, or try again later")
                        .WithReason(Reason::kSessionMemoryFull);
    const auto wait = TimeUntilFit(principal, more, grows);
    return wait.has_value() ? std::move(status).WithRetryAfter(*wait) : status;
  }
  for (const Iterator victim : victims) {
    LogInfo("session_evicted", {{"session", victim->key.second}});
    Remove(victim);
    ++stats_.evicted;
  }
  return Status();
}

SessionTable::Iterator SessionTable::Evictable(const Principal& principal, int64_t more,
                                               const Entry* except,
                                               const std::vector<Iterator>& taken) {
  Iterator found = entries_.end();
  int64_t most = -1;
  for (Iterator at = entries_.begin(); at != entries_.end(); ++at) {
    if (!at->head.evictable || at->snapshot == nullptr || at->leased || at->held ||
        &*at == except || std::ranges::count(taken, at) > 0)
      continue;
    const bool own = at->principal == principal;
    if (!own && !shares_.HoldsMore(at->principal, principal, more)) continue;
    const int64_t holds = own ? 0 : shares_.Of(at->principal).principal;
    if (holds <= most) continue;
    most = holds;
    found = at;
  }
  return found;
}

std::optional<std::chrono::milliseconds> SessionTable::TimeUntilFit(const Principal& principal,
                                                                    int64_t more, bool grows) {
  std::vector<Iterator> entries, taken;
  for (Iterator entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->snapshot != nullptr && !entry->leased && OwnsState(*entry)) entries.push_back(entry);
  }
  const auto ends = [](Iterator entry) { return entry->used + entry->head.ttl; };
  std::sort(entries.begin(), entries.end(),
            [&](Iterator a, Iterator b) { return ends(a) < ends(b); });
  bool fits = false;
  for (size_t i = 0; i < entries.size() && !fits; ++i) {
    TakeOff(entries[i], &taken);
    fits = Fits(principal, more, grows);
  }
  PutBack(taken);
  if (!fits) return std::nullopt;
  const auto left = ends(taken.back()) - options_.now() + kSweepInterval;
  return std::chrono::ceil<std::chrono::milliseconds>(std::max(left, decltype(left)::zero()));
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
