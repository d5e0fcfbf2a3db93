#include "engine/session/session_table.h"

#include <algorithm>
#include <set>

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
                            *expected);
}

}  // namespace

SessionLease::~SessionLease() {
  if (table_ != nullptr) table_->Release(key_);
}

SessionTable::SessionTable(SessionOptions options)
    : options_(std::move(options)), last_sweep_(options_.now()), last_store_sweep_(last_sweep_) {
  stats_.memory_limit = options_.memory;
}

// --- sessions ---

Result<SessionInfo> SessionTable::Create(const std::string& tenant, bool durable, milliseconds ttl,
                                         std::shared_ptr<const Snapshot> start) {
  Maintain();
  if (durable) PS_RETURN_IF_ERROR(RequireStore("a durable session"));
  PS_RETURN_IF_ERROR(CheckCount(tenant, 1, /*snapshots=*/false));
  return NewSession(tenant, durable, ttl, std::move(start));
}

Result<SessionInfo> SessionTable::NewSession(const std::string& tenant, bool durable,
                                             milliseconds ttl,
                                             std::shared_ptr<const Snapshot> start) {
  PS_ASSIGN_OR_RETURN(ttl, Ttl(ttl));
  PS_ASSIGN_OR_RETURN(const Iterator entry, InsertNew({.key = {tenant, NewStateKey()},
                                                       .head = {.durable = durable, .ttl = ttl}},
                                                      std::move(start)));
  return Describe(*entry);
}

Result<SessionLease> SessionTable::Acquire(const std::string& tenant, const std::string& id,
                                           std::optional<int64_t> expected) {
  PS_ASSIGN_OR_RETURN(Iterator entry, FindLatest({tenant, id}));
  PS_RETURN_IF_ERROR(CheckExpected(expected, entry->head.tokens));
  if (!entry->in_memory) {
    PS_ASSIGN_OR_RETURN(entry, Load(entry->key));
  }
  MarkUsed(entry);
  std::lock_guard lock(mutex_);
  entry->leased = true;
  return SessionLease(this, entry->key, entry->snapshot);
}

Result<SessionInfo> SessionTable::Commit(SessionLease lease,
                                         std::shared_ptr<const Snapshot> snapshot) {
  const Iterator entry = Find(lease.key_);
  PS_CHECK(entry != entries_.end()) << "a session was removed during its lease";
  const std::shared_ptr<const Snapshot> before = entry->snapshot;
  const bool owned = OwnsState(*entry);
  const bool was_stored = entry->stored;
  const bool writes = entry->head.durable || write_through_;
  SetSnapshot(entry, std::move(snapshot));
  MarkUsed(entry);
  Status status = writes ? Write(&*entry) : Status();
  if (status.ok()) status = MakeRoom();
  if (status.ok()) status = CheckShare(*entry, owned);
  if (!status.ok()) {
    SetSnapshot(entry, before);
    // The store may have the new snapshot. The next write replaces it with the old one.
    entry->stored = was_stored && !writes;
    return status;
  }
  // The store holds an older snapshot of a session that was moved there for memory only: it must
  // not be loaded again.
  if (!entry->head.durable && was_stored && !entry->stored) {
    CountError("delete", options_.store->Delete(entry->key.first, SessionKey(entry->key.second)));
  }
  return Describe(*entry);
}

Result<std::vector<SessionInfo>> SessionTable::Fork(const std::string& tenant,
                                                    const std::string& id, int count,
                                                    std::optional<int64_t> expected) {
  PS_ASSIGN_OR_RETURN(const SessionLease lease, Acquire(tenant, id, expected));
  PS_RETURN_IF_ERROR(CheckCount(tenant, count, /*snapshots=*/false));
  const SessionHead head = Find(lease.key_)->head;
  std::vector<SessionInfo> forks;
  for (int i = 0; i < count; ++i) {
    Result<SessionInfo> fork = NewSession(tenant, head.durable, head.ttl, lease.snapshot());
    if (!fork.ok()) {
      for (const SessionInfo& made : forks) (void)Delete(tenant, made.id);
      return fork.status();
    }
    forks.push_back(*std::move(fork));
  }
  return forks;
}

Status SessionTable::Delete(const std::string& tenant, const std::string& id) {
  const Iterator entry = Find({tenant, id});
  if (entry != entries_.end()) {
    if (IsLeased(*entry)) return Status(Code::kAborted, StrCat("session ", id, " is in use"));
    if (options_.store != nullptr && (entry->stored || entry->head.durable)) {
      Status status = Counted("delete", options_.store->Delete(tenant, SessionKey(id)));
      if (!status.ok() && status.code() != Code::kNotFound) return status;
    }
    Remove(entry);
    return Status();
  }
  if (options_.store == nullptr || !IsStateKey(id)) return NoSession(id);
  Status status = Counted("delete", options_.store->Delete(tenant, SessionKey(id)));
  if (status.code() == Code::kNotFound) {
    status = Counted("delete", options_.store->Delete(tenant, SnapshotKey(id)));
  }
  if (status.code() == Code::kNotFound) return NotFound("there is no session or snapshot ", id);
  return status;
}

Result<SessionTable::Listing> SessionTable::List(const std::string& tenant) {
  Maintain();
  Listing listing;
  std::map<std::string, StoredInfo> stored;  // sessions by id
  const auto now = options_.date();
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
  for (const Entry& entry : entries_) {
    const std::string& id = entry.key.second;
    if (entry.key.first != tenant) continue;
    if (entry.is_snapshot) {
      listing.snapshots.push_back({id, entry.bytes, Since(entry.head.created, now)});
      continue;
    }
    const auto found = stored.find(id);
    // A session that another replica has written or deleted since is listed as the store holds it.
    if (entry.stored && (found == stored.end() || found->second.revision != entry.revision)) {
      continue;
    }
    listing.sessions.push_back(Describe(entry));
    if (found != stored.end()) stored.erase(found);
  }
  for (const auto& [id, one] : stored) listing.sessions.push_back(Describe(id, one));
  return listing;
}

// --- snapshots and migrated completions ---

Result<SnapshotInfo> SessionTable::TakeSnapshot(const std::string& tenant, const std::string& id,
                                                milliseconds ttl) {
  PS_ASSIGN_OR_RETURN(const SessionLease lease, Acquire(tenant, id, std::nullopt));
  if (lease.snapshot() == nullptr) {
    return FailedPrecondition("session ", id, " is empty: there is nothing to take a snapshot of");
  }
  PS_RETURN_IF_ERROR(CheckCount(tenant, 1, /*snapshots=*/true));
  PS_ASSIGN_OR_RETURN(ttl, Ttl(ttl));
  const std::string key = NewStateKey();
  if (options_.store != nullptr) {
    const std::string bytes = options_.codec.Encode(*lease.snapshot());
    PS_RETURN_IF_ERROR(
        Counted("put", options_.store->Put(tenant, SnapshotKey(key), bytes, ttl)).status());
    return SnapshotInfo{key, static_cast<int64_t>(bytes.size()), {}};
  }
  PS_ASSIGN_OR_RETURN(const Iterator entry,
                      InsertNew({.key = {tenant, key}, .head = {.ttl = ttl}, .is_snapshot = true},
                                lease.snapshot()));
  return SnapshotInfo{key, entry->bytes, {}};
}

Result<SessionInfo> SessionTable::Restore(const std::string& tenant, const std::string& key,
                                          bool durable, milliseconds ttl) {
  Maintain();
  const Status missing = NotFound("there is no snapshot ", key);
  if (!IsStateKey(key)) return missing;
  if (options_.store == nullptr) {
    const Iterator entry = Find({tenant, key});
    if (entry == entries_.end() || !entry->is_snapshot) return missing;
    return Create(tenant, durable, ttl, entry->snapshot);
  }
  PS_ASSIGN_OR_RETURN(std::shared_ptr<const Snapshot> snapshot,
                      GetSnapshot(tenant, SnapshotKey(key), missing));
  return Create(tenant, durable, ttl, std::move(snapshot));
}

Result<std::string> SessionTable::PutMigrated(const std::string& tenant, const Snapshot& snapshot,
                                              milliseconds ttl) {
  PS_RETURN_IF_ERROR(RequireStore("a migrated completion"));
  const std::string token = NewStateKey();
  const std::string bytes = options_.codec.Encode(snapshot);
  PS_RETURN_IF_ERROR(
      Counted("put", options_.store->Put(tenant, MigratedKey(token), bytes, ttl)).status());
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

Status SessionTable::CheckCount(const std::string& tenant, int more, bool snapshots) {
  // Entries that the store holds are counted in the store: another replica may have deleted them.
  std::set<std::string> ids;
  for (const Entry& entry : entries_) {
    const bool counts = entry.key.first == tenant && entry.is_snapshot == snapshots;
    if (counts && !entry.stored) ids.insert(entry.key.second);
  }
  if (options_.store != nullptr) {
    const std::string prefix = snapshots ? SnapshotKey("") : SessionKey("");
    PS_ASSIGN_OR_RETURN(const auto stored, Counted("list", options_.store->List(tenant, prefix)));
    for (const StoredInfo& info : stored) ids.insert(info.key.substr(prefix.size()));
  }
  if (std::ssize(ids) + more <= options_.max_per_tenant) return Status();
  return ResourceExhausted("a tenant may have ", options_.max_per_tenant,
                           snapshots ? " snapshots" : " sessions", "; delete some first");
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
          stored.bytes,
          head.durable,
          /*in_memory=*/false,
          Since(head.created, now),
          Since(stored.created, now),
          head.ttl};
}

Status SessionTable::RequireStore(const char* what) const {
  if (options_.store != nullptr) return Status();
  return FailedPrecondition(what, " needs a store, and this server has none (--state-store)");
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
