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

milliseconds Since(std::chrono::system_clock::time_point then,
                   std::chrono::system_clock::time_point now) {
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
    : options_(std::move(options)), last_sweep_(options_.now()) {
  stats_.memory_limit = options_.memory;
}

// --- sessions ---

Result<SessionInfo> SessionTable::Create(const std::string& tenant, bool durable, milliseconds ttl,
                                         std::shared_ptr<const Snapshot> start) {
  Tidy();
  if (durable) PS_RETURN_IF_ERROR(RequireStore("a durable session"));
  PS_RETURN_IF_ERROR(CheckCount(tenant, 1, /*snapshots=*/false));
  return Make(tenant, durable, ttl, std::move(start));
}

Result<SessionInfo> SessionTable::Make(const std::string& tenant, bool durable, milliseconds ttl,
                                       std::shared_ptr<const Snapshot> start) {
  Entry entry;
  entry.key = {tenant, NewStateKey()};
  entry.durable = durable;
  PS_ASSIGN_OR_RETURN(entry.ttl, Ttl(ttl));
  entry.created = entry.used = options_.now();
  const Place place = Insert(std::move(entry));
  SetSnapshot(place, std::move(start));
  Status status = durable ? Write(&*place) : Status();
  if (status.ok()) status = MakeRoom();
  if (!status.ok()) {
    Remove(place);
    return status;
  }
  return Describe(*place);
}

Result<SessionLease> SessionTable::Acquire(const std::string& tenant, const std::string& id,
                                           std::optional<int64_t> expected) {
  PS_ASSIGN_OR_RETURN(Place place, Look({tenant, id}));
  PS_RETURN_IF_ERROR(CheckExpected(expected, place->tokens));
  if (!place->in_memory) {
    PS_ASSIGN_OR_RETURN(place, Load(place->key));
  }
  place->used = options_.now();
  entries_.splice(entries_.end(), entries_, place);
  std::lock_guard lock(mutex_);
  place->busy = true;
  return SessionLease(this, place->key, place->snapshot);
}

Result<SessionInfo> SessionTable::Commit(SessionLease lease,
                                         std::shared_ptr<const Snapshot> snapshot) {
  const Place place = Find(lease.key_);
  PS_CHECK(place != entries_.end()) << "a session went while it was in use";
  const std::shared_ptr<const Snapshot> before = place->snapshot;
  const bool was_stored = place->stored;
  const bool writes = place->durable || write_through_;
  SetSnapshot(place, std::move(snapshot));
  place->used = options_.now();
  entries_.splice(entries_.end(), entries_, place);
  Status status = writes ? Write(&*place) : Status();
  if (status.ok()) status = MakeRoom();
  if (!status.ok()) {
    SetSnapshot(place, before);
    // What the store has may be the new one: the old one goes there with the next write.
    place->stored = was_stored && !writes;
    return status;
  }
  // A session that was only spilled must not come back from an older state.
  if (!place->durable && was_stored && !place->stored) {
    CountError("delete", options_.store->Delete(place->key.first, SessionKey(place->key.second)));
  }
  return Describe(*place);
}

Result<std::vector<SessionInfo>> SessionTable::Fork(const std::string& tenant,
                                                    const std::string& id, int count,
                                                    std::optional<int64_t> expected) {
  PS_ASSIGN_OR_RETURN(const SessionLease lease, Acquire(tenant, id, expected));
  PS_RETURN_IF_ERROR(CheckCount(tenant, count, /*snapshots=*/false));
  const Place place = Find(lease.key_);
  const bool durable = place->durable;
  const milliseconds ttl = place->ttl;
  std::vector<SessionInfo> forks;
  for (int i = 0; i < count; ++i) {
    Result<SessionInfo> fork = Make(tenant, durable, ttl, lease.snapshot());
    if (!fork.ok()) {
      for (const SessionInfo& made : forks) (void)Delete(tenant, made.id);
      return fork.status();
    }
    forks.push_back(*std::move(fork));
  }
  return forks;
}

Status SessionTable::Delete(const std::string& tenant, const std::string& id) {
  const Place place = Find({tenant, id});
  if (place != entries_.end()) {
    {
      std::lock_guard lock(mutex_);
      if (place->busy) return Status(Code::kAborted, StrCat("session ", id, " is in use"));
    }
    const bool in_store = options_.store != nullptr && (place->stored || place->durable);
    if (in_store) {
      Status status = Counted("delete", options_.store->Delete(tenant, SessionKey(id)));
      if (!status.ok() && status.code() != Code::kNotFound) return status;
    }
    Remove(place);
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
  Tidy();
  Listing listing;
  std::map<std::string, StoredInfo> stored;  // sessions by id
  const auto now = options_.now();
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
      listing.snapshots.push_back({id, entry.bytes, Since(entry.created, now)});
      continue;
    }
    const auto found = stored.find(id);
    // The store tells of what another replica has written or deleted since.
    if (entry.stored && (found == stored.end() || found->second.revision != entry.revision)) {
      continue;
    }
    listing.sessions.push_back(Describe(entry));
    if (found != stored.end()) stored.erase(found);
  }
  for (const auto& [id, one] : stored) listing.sessions.push_back(Describe(id, one));
  return listing;
}

// --- snapshots and stopped completions ---

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
  Entry entry;
  entry.key = {tenant, key};
  entry.is_snapshot = true;
  entry.ttl = ttl;
  entry.created = entry.used = options_.now();
  const Place place = Insert(std::move(entry));
  SetSnapshot(place, lease.snapshot());
  if (Status status = MakeRoom(); !status.ok()) {
    Remove(place);
    return status;
  }
  return SnapshotInfo{key, place->bytes, {}};
}

Result<SessionInfo> SessionTable::Restore(const std::string& tenant, const std::string& key,
                                          bool durable, milliseconds ttl) {
  Tidy();
  const Status none = NotFound("there is no snapshot ", key);
  if (!IsStateKey(key)) return none;
  if (options_.store == nullptr) {
    const Place place = Find({tenant, key});
    if (place == entries_.end() || !place->is_snapshot) return none;
    return Create(tenant, durable, ttl, place->snapshot);
  }
  PS_ASSIGN_OR_RETURN(std::shared_ptr<const Snapshot> snapshot,
                      GetSnapshot(tenant, SnapshotKey(key), none));
  return Create(tenant, durable, ttl, std::move(snapshot));
}

Result<std::string> SessionTable::PutMigrated(const std::string& tenant, const Snapshot& snapshot,
                                              milliseconds ttl) {
  PS_RETURN_IF_ERROR(RequireStore("a stopped completion"));
  const std::string token = NewStateKey();
  const std::string bytes = options_.codec.Encode(snapshot);
  PS_RETURN_IF_ERROR(
      Counted("put", options_.store->Put(tenant, MigratedKey(token), bytes, ttl)).status());
  return token;
}

Result<std::shared_ptr<const Snapshot>> SessionTable::GetMigrated(const std::string& tenant,
                                                                  const std::string& token) {
  const Status none = NotFound("resume_token: there is no stopped completion ", token);
  if (options_.store == nullptr || !IsStateKey(token)) return none;
  return GetSnapshot(tenant, MigratedKey(token), none);
}

Result<std::shared_ptr<const Snapshot>> SessionTable::GetSnapshot(const std::string& tenant,
                                                                  const std::string& key,
                                                                  const Status& none) {
  const auto stored = Counted("get", options_.store->Get(tenant, key));
  if (stored.status().code() == Code::kNotFound) return none;
  if (!stored.ok()) return stored.status();
  return Counted("decode", options_.codec.Decode(AsText(stored->bytes)));
}

// --- parts ---

Status SessionTable::CheckCount(const std::string& tenant, int more, bool snapshots) {
  std::set<std::string> ids;  // those that the store has, unless another replica deleted them, too
  for (const Entry& entry : entries_) {
    const bool counts = entry.key.first == tenant && entry.is_snapshot == snapshots;
    if (counts && !entry.stored) ids.insert(entry.key.second);
  }
  if (options_.store != nullptr) {
    const std::string prefix = snapshots ? SnapshotKey("") : SessionKey("");
    PS_ASSIGN_OR_RETURN(const auto stored, Counted("list", options_.store->List(tenant, prefix)));
    for (const StoredInfo& info : stored) ids.insert(info.key.substr(prefix.size()));
  }
  const int64_t count = std::ssize(ids) + more;
  if (count <= options_.max_per_tenant) return Status();
  return ResourceExhausted("a tenant may have ", options_.max_per_tenant,
                           snapshots ? " snapshots" : " sessions", "; delete some first");
}

Result<milliseconds> SessionTable::Ttl(milliseconds asked) const {
  if (asked.count() == 0) return options_.default_ttl;
  if (asked.count() > 0 && asked <= options_.max_ttl) return asked;
  return InvalidArgument("ttl_seconds: expected 0 to ", options_.max_ttl.count() / 1000, ", found ",
                         asked.count() / 1000);
}

SessionInfo SessionTable::Describe(const Entry& entry) const {
  const auto now = options_.now();
  return {entry.key.second,       entry.tokens,    entry.bytes,
          entry.durable,          entry.in_memory, Since(entry.created, now),
          Since(entry.used, now), entry.ttl};
}

SessionInfo SessionTable::Describe(const std::string& id, const StoredInfo& stored) {
  const auto now = options_.now();
  SessionInfo info;
  info.id = id;
  info.bytes = stored.bytes;
  info.idle = Since(stored.created, now);
  // A damaged one is listed too: it can be deleted.
  if (const auto head = Counted("decode", DecodeSessionHead(stored.head)); head.ok()) {
    info.tokens = head->tokens;
    info.durable = head->durable;
    info.ttl = head->ttl;
    info.age = Since(head->created, now);
  }
  return info;
}

Status SessionTable::RequireStore(const char* what) const {
  if (options_.store != nullptr) return Status();
  return FailedPrecondition(what, " needs a store, and this server has none (--state-store)");
}

void SessionTable::CountError(const char* operation, const Status& status) {
  switch (status.code()) {
    case Code::kOk:
    case Code::kNotFound:
    case Code::kFailedPrecondition:  // another model's, or one beyond our limits: it is whole
    case Code::kInvalidArgument:
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
