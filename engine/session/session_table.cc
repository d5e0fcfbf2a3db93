#include "engine/session/session_table.h"

#include <algorithm>

#include "base/check.h"
#include "base/logging.h"
#include "engine/session/session_keys.h"
#include "engine/store/state_key.h"

namespace polysketch {
namespace {

using std::chrono::milliseconds;

template <typename TimePoint>
milliseconds Since(TimePoint then, TimePoint now) {
  return std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(now - then));
}

Status CheckExpected(std::optional<int64_t> expected, int64_t found) {
  if (!expected || *expected == found) return Status();
  return FailedPrecondition("expected_position: the session is at ", found, " tokens, not ",
                            *expected)
      .WithReason(Reason::kPositionMismatch);
}

}  // namespace

SessionLease::~SessionLease() {
  if (table_ != nullptr) table_->Release(this);
}

SessionTable::SessionTable(SessionOptions options)
    : options_(std::move(options)), last_sweep_(options_.now()), last_store_sweep_(last_sweep_) {
  stats_.memory_limit = options_.memory;
}

// --- whether an operation may wait for the store ---

bool SessionTable::CreateNeedsStore(const std::string& tenant, bool durable) const {
  if (options_.store == nullptr) return false;
  if (durable) return true;
  std::lock_guard lock(mutex_);
  return CountKnown({tenant, false}) >= options_.max_per_tenant;
}

bool SessionTable::NeedsStore(const std::string& tenant, const std::string& id) const {
  if (options_.store == nullptr) return false;
  std::lock_guard lock(mutex_);
  const auto found = index_.find({tenant, id});
  if (found == index_.end()) return IsStateKey(id);
  const Entry& entry = *found->second;
  return entry.in_store || entry.held || entry.head.durable;
}

bool SessionTable::CommitNeedsStore(const SessionLease& lease, const Snapshot& snapshot) const {
  if (options_.store == nullptr) return false;
  std::lock_guard lock(mutex_);
  if (write_through_ || memory_.bytes() + snapshot.bytes() > options_.memory) return true;
  const auto found = index_.find(lease.key_);
  if (found == index_.end()) return true;
  const Entry& entry = *found->second;
  return entry.in_store || entry.held || entry.head.durable;
}

// --- sessions ---

Result<SessionInfo> SessionTable::Create(const SessionUser& user, Keep keep, milliseconds ttl,
                                         std::shared_ptr<const Snapshot> start) {
  const bool durable = keep == Keep::kDurable;
  if (durable) PS_RETURN_IF_ERROR(RequireStore("a durable session"));
  PS_ASSIGN_OR_RETURN(ttl, Ttl(ttl));
  PS_ASSIGN_OR_RETURN(Places place, TakePlaces(user, 1, /*snapshots=*/false, durable));
  return InsertNew(
      {.key = {user.tenant, place.id()},
       .principal = user.principal,
       .head = {.durable = durable, .evictable = keep == Keep::kEvictable, .ttl = ttl}},
      std::move(start), &place);
}

Result<SessionLease> SessionTable::Acquire(const SessionUser& user, const std::string& id,
                                           std::optional<int64_t> expected) {
  Lock lock(mutex_);
  Sweep();
  PS_ASSIGN_OR_RETURN(Iterator entry, FindLatest(&lock, {user.tenant, id}, user.principal));
  PS_RETURN_IF_ERROR(CheckExpected(expected, entry->head.tokens));
  if (!entry->in_memory) {
    PS_ASSIGN_OR_RETURN(entry, Load(&lock, {user.tenant, id}, user.principal));
    PS_RETURN_IF_ERROR(CheckExpected(expected, entry->head.tokens));
  }
  MarkUsed(entry);
  entry->leased = true;
  return SessionLease(this, entry->key, user.principal, entry->snapshot);
}

Result<SessionInfo> SessionTable::Commit(SessionLease lease,
                                         std::shared_ptr<const Snapshot> snapshot) {
  const Key key = lease.key_;
  Lock lock(mutex_);
  const Iterator entry = FindFree(&lock, key);
  PS_CHECK(entry != entries_.end()) << "a session was removed during its lease";
  const Hold hold(this, entry);
  const std::shared_ptr<const Snapshot> before = entry->snapshot;
  const Principal principal_before = entry->principal;
  // Another principal grows by the whole state.
  const bool owned = entry->principal == lease.principal_ && OwnsState(*entry);
  // The room that a reservation found is not refused any more.
  const bool has_room = lease.reserved_ > 0;
  const bool was_stored = entry->stored;
  const bool writes = entry->head.durable || write_through_;
  if (writes) {
    SessionRecord record = {entry->head, snapshot};
    record.head.tokens = snapshot == nullptr ? 0 : snapshot->tokens();
    entry->in_store = true;
    // After an error the store holds the snapshot before, or, of an unknown outcome, perhaps the
    // new one: the next use asks it, as for a session that another replica has written.
    StoredBlocks blocks = entry->blocks;
    PS_ASSIGN_OR_RETURN(const uint64_t revision,
                        Unlocked(&lock, [&] { return WriteRecord(key, record, &blocks); }));
    SetReserved(&lease, 0);
    SetSnapshot(entry, std::move(snapshot), lease.principal_);
    entry->stored = true;
    entry->revision = revision;
    entry->blocks = std::move(blocks);
  } else {
    SetReserved(&lease, 0);
    SetSnapshot(entry, std::move(snapshot), lease.principal_);
  }
  MarkUsed(entry);
  Status status = MakeRoom(&lock, &*entry);
  if (!status.ok() && entry->stored) {  // the session needs no memory: the store holds it
    DropFromMemory(entry);
    status = Status();
  }
  if (status.ok() && !has_room) status = CheckShare(*entry, owned);
  if (!status.ok()) {
    SetSnapshot(entry, before, principal_before);
    entry->stored = was_stored;
    return status;
  }
  // The store holds an older snapshot of a session that was moved there for memory only: it must
  // not be loaded again. After an error the next commit and Delete try again.
  if (!writes && entry->in_store) {
    const Status deleted = Unlocked(&lock, [&] { return DeleteRecord(key); });
    if (deleted.ok()) entry->blocks = {};
    entry->in_store = !deleted.ok() && deleted.code() != Code::kNotFound;
  }
  return Describe(*entry);
}

Result<std::vector<SessionInfo>> SessionTable::Fork(const SessionUser& user, const std::string& id,
                                                    int count, std::optional<int64_t> expected) {
  PS_ASSIGN_OR_RETURN(const SessionLease lease, Acquire(user, id, expected));
  SessionHead head;
  {
    std::lock_guard lock(mutex_);
    head = Find(lease.key_)->head;
  }
  PS_ASSIGN_OR_RETURN(Places places, TakePlaces(user, count, /*snapshots=*/false, head.durable));
  std::vector<SessionInfo> forks;
  for (int i = 0; i < count; ++i) {
    Result<SessionInfo> fork =
        InsertNew({.key = {user.tenant, places.id()},
                   .principal = user.principal,
                   .head = {.durable = head.durable, .evictable = head.evictable, .ttl = head.ttl}},
                  lease.snapshot(), &places);
    if (!fork.ok()) {
      for (const SessionInfo& made : forks) {
        if (!Delete(user.tenant, made.id).ok()) return OutcomeUnknown(fork.status());
      }
      return fork.status();
    }
    forks.push_back(*std::move(fork));
  }
  return forks;
}

Status SessionTable::Delete(const std::string& tenant, const std::string& id) {
  {
    Lock lock(mutex_);
    const Iterator entry = FindFree(&lock, {tenant, id});
    if (entry != entries_.end()) {
      if (entry->leased) return InUse(id);
      if (options_.store != nullptr && (entry->in_store || entry->head.durable)) {
        Hold hold(this, entry);
        Status status = Unlocked(&lock, [&] { return DeleteRecord({tenant, id}); });
        hold.End();
        if (!status.ok() && status.code() != Code::kNotFound) return status;
      }
      Remove(entry);
      return Status();
    }
  }
  if (options_.store == nullptr || !IsStateKey(id)) return NoSession(id);
  Status status = DeleteRecord({tenant, id});
  const bool snapshot = status.code() == Code::kNotFound;
  if (snapshot) status = Counted("delete", options_.store->Delete(tenant, SnapshotKey(id)));
  if (status.code() == Code::kNotFound) return NotFound("there is no session or snapshot ", id);
  if (!status.ok()) return status;
  std::lock_guard lock(mutex_);
  AddOnlyStored({tenant, snapshot}, -1);
  return Status();
}

Result<SessionTable::Listing> SessionTable::List(const std::string& tenant) {
  Listing listing;
  const auto now = options_.date();
  std::map<std::string, uint64_t> revisions;  // before the store is asked
  {
    std::lock_guard lock(mutex_);
    revisions = StoredRevisions(tenant);
  }
  std::map<std::string, StoredInfo> stored;  // sessions by id
  if (options_.store != nullptr) {
    PS_ASSIGN_OR_RETURN(const auto sessions,
                        Counted("list", options_.store->List(tenant, SessionKey(""))));
    for (const StoredInfo& one : sessions) stored[one.key.substr(SessionKey("").size())] = one;
    PS_ASSIGN_OR_RETURN(const auto snapshots,
                        Counted("list", options_.store->List(tenant, SnapshotKey(""))));
    for (const StoredInfo& one : snapshots) {
      listing.snapshots.push_back(
          {one.key.substr(SnapshotKey("").size()), one.bytes, Since(one.created, now)});
    }
  }
  Lock lock(mutex_);
  ForEntriesOf(tenant, [&](const Entry& entry) {
    const std::string& id = entry.key.second;
    if (entry.is_snapshot) {
      listing.snapshots.push_back({id, entry.bytes, Since(entry.head.created, now)});
      return;
    }
    const auto found = stored.find(id);
    const bool same = found != stored.end() && found->second.revision == entry.revision;
    const auto before = revisions.find(id);
    const bool unchanged = before != revisions.end() && before->second == entry.revision;
    // A session that another replica has written or deleted since is listed as the store holds it.
    if (entry.stored && !same && unchanged) return;
    listing.sessions.push_back(Describe(entry));
    if (found != stored.end()) stored.erase(found);
  });
  lock.unlock();
  for (const auto& [id, one] : stored) listing.sessions.push_back(Describe(id, one));
  return listing;
}

// --- snapshots and migrated completions ---

Result<SnapshotInfo> SessionTable::TakeSnapshot(const SessionUser& user, const std::string& id,
                                                milliseconds ttl) {
  const std::string& tenant = user.tenant;
  PS_ASSIGN_OR_RETURN(const SessionLease lease, Acquire(user, id, std::nullopt));
  if (lease.snapshot() == nullptr) {
    return FailedPrecondition("session ", id, " is empty: there is nothing to take a snapshot of");
  }
  PS_ASSIGN_OR_RETURN(ttl, Ttl(ttl));
  PS_ASSIGN_OR_RETURN(Places place, TakePlaces(user, 1, /*snapshots=*/true, /*ask_store=*/true));
  const std::string key = place.id();
  if (options_.store != nullptr) {
    std::string bytes = options_.codec.Encode(*lease.snapshot());
    const auto size = static_cast<int64_t>(bytes.size());
    PS_RETURN_IF_ERROR(
        Counted("put", options_.store->Put(tenant, SnapshotKey(key), std::move(bytes), ttl))
            .status());
    std::lock_guard lock(mutex_);
    place.TakeOne();
    AddStoredSnapshot(tenant, key);
    return SnapshotInfo{key, size, {}};
  }
  PS_ASSIGN_OR_RETURN(const SessionInfo info, InsertNew({.key = {tenant, key},
                                                         .principal = user.principal,
                                                         .head = {.ttl = ttl},
                                                         .is_snapshot = true},
                                                        lease.snapshot(), &place));
  return SnapshotInfo{key, info.bytes, {}};
}

Result<SessionInfo> SessionTable::Restore(const SessionUser& user, const std::string& key,
                                          bool durable, milliseconds ttl) {
  const Status missing = NotFound("there is no snapshot ", key);
  if (!IsStateKey(key)) return missing;
  if (options_.store == nullptr) {
    std::shared_ptr<const Snapshot> snapshot;
    {
      std::lock_guard lock(mutex_);
      Sweep();
      const Iterator entry = Find({user.tenant, key});
      if (entry == entries_.end() || !entry->is_snapshot) return missing;
      snapshot = entry->snapshot;
    }
    return Create(user, durable, ttl, std::move(snapshot));
  }
  PS_ASSIGN_OR_RETURN(std::shared_ptr<const Snapshot> snapshot,
                      GetSnapshot(user.tenant, SnapshotKey(key), missing));
  return Create(user, durable, ttl, std::move(snapshot));
}

Result<std::string> SessionTable::PutMigrated(const std::string& tenant, const Snapshot& snapshot,
                                              milliseconds ttl) {
  PS_RETURN_IF_ERROR(RequireStore("a migrated completion"));
  const std::string token = NewStateKey();
  std::string bytes = options_.codec.Encode(snapshot);
  PS_RETURN_IF_ERROR(
      Counted("put", options_.store->Put(tenant, MigratedKey(token), std::move(bytes), ttl))
          .status());
  return token;
}

Result<std::shared_ptr<const Snapshot>> SessionTable::GetMigrated(const std::string& tenant,
                                                                  const std::string& token) {
  const Status missing = NotFound("resume_token: there is no migrated completion ", token);
  if (options_.store == nullptr || !IsStateKey(token)) return missing;
  return GetSnapshot(tenant, MigratedKey(token), missing);
}

Result<std::shared_ptr<const Snapshot>> SessionTable::GetSnapshot(const std::string& tenant,
                                                                  const std::string& key,
                                                                  const Status& missing) {
  const auto stored = Counted("get", options_.store->Get(tenant, key));
  if (stored.status().code() == Code::kNotFound) return missing;
  if (!stored.ok()) return stored.status();
  return Counted("decode", options_.codec.Decode(AsText(stored->bytes)));
}

// --- helpers ---

Result<SessionInfo> SessionTable::InsertNew(Entry entry, std::shared_ptr<const Snapshot> snapshot,
                                            Places* places) {
  entry.head.created = options_.date();
  entry.used = options_.now();
  Lock lock(mutex_);
  places->TakeOne();
  const Iterator inserted = Insert(std::move(entry));
  // Listings show its id before it is made: an operation that has found it waits.
  Hold hold(this, inserted);
  SetSnapshot(inserted, std::move(snapshot));
  Status status;
  if (inserted->head.durable) status = Write(&lock, inserted);
  if (status.ok()) status = MakeRoom(&lock, &*inserted);
  if (!status.ok() && inserted->stored) {  // it needs no memory: the store holds it
    DropFromMemory(inserted);
    status = Status();
  }
  if (status.ok()) status = CheckShare(*inserted, /*owned_before=*/false);
  if (status.ok()) return Describe(*inserted);
  hold.End();
  Remove(inserted);
  return status;
}

Result<milliseconds> SessionTable::Ttl(milliseconds requested) const {
  if (requested.count() == 0) return options_.default_ttl;
  if (requested.count() > 0 && requested <= options_.max_ttl) return requested;
  return InvalidArgument("ttl_seconds: expected 0 to ", options_.max_ttl.count() / 1000, ", found ",
                         requested.count() / 1000);
}

SessionInfo SessionTable::Describe(const Entry& entry) const {
  const SessionHead& head = entry.head;
  return {entry.key.second,
          head.tokens,
          entry.bytes,
          head.durable,
          entry.in_memory,
          Since(head.created, options_.date()),
          Since(entry.used, options_.now()),
          head.ttl};
}

SessionInfo SessionTable::Describe(const std::string& id, const StoredInfo& stored) {
  const auto now = options_.date();
  // A damaged session is listed too, so that it can be deleted.
  const auto decoded = Counted("decode", DecodeSessionHead(stored.head));
  const SessionHead head = decoded.ok() ? *decoded : SessionHead{.created = now};
  return {id,
          head.tokens,
          stored.bytes + head.block_bytes,
          head.durable,
          /*in_memory=*/false,
          Since(head.created, now),
          Since(stored.created, now),
          head.ttl};
}

Status SessionTable::RequireStore(const char* what) const {
  if (options_.store != nullptr) return Status();
  return FailedPrecondition(what, " needs a store, and this server has none (--state-store)")
      .WithReason(Reason::kStateStoreMissing);
}

void SessionTable::CountError(const char* operation, const Status& status) {
  switch (status.code()) {
    case Code::kOk:
    case Code::kNotFound:
    case Code::kFailedPrecondition:  // an undamaged snapshot of another model
    case Code::kInvalidArgument:     // an undamaged snapshot beyond the limits of this process
      return;
    default:
      break;
  }
  LogWarning("state_store_failed", {{"operation", operation}, {"why", status.message()}});
  std::lock_guard lock(mutex_);
  ++stats_.store_errors;
}

SessionStats SessionTable::stats() const {
  std::lock_guard lock(mutex_);
  SessionStats stats = stats_;
  if (options_.store != nullptr) stats.store = options_.store->usage();
  return stats;
}

}  // namespace polysketch
