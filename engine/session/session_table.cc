#include "engine/session/session_table.h"

#include <algorithm>

#include "base/check.h"
#include "base/logging.h"

namespace polysketch {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kSweepInterval{1};
constexpr std::chrono::seconds kStoreSweepInterval{60};

std::string SessionKey(const std::string& id) { return "session-" + id; }
std::string SnapshotKey(const std::string& id) { return "snapshot-" + id; }
std::string StoppedKey(const std::string& id) { return "stopped-" + id; }

milliseconds Since(std::chrono::system_clock::time_point then,
                   std::chrono::system_clock::time_point now) {
  return std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(now - then));
}

Status NoSession(const std::string& id) { return NotFound("there is no session ", id); }

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
    CountError(options_.store->Delete(place->key.first, SessionKey(place->key.second)));
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
      for (const SessionInfo& made : forks) CountError(Delete(tenant, made.id));
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
      Status status = options_.store->Delete(tenant, SessionKey(id));
      if (!status.ok() && status.code() != Code::kNotFound) return status;
    }
    Remove(place);
    return Status();
  }
  if (options_.store == nullptr || !IsStateKey(id)) return NoSession(id);
  Status status = options_.store->Delete(tenant, SessionKey(id));
  if (status.code() == Code::kNotFound) status = options_.store->Delete(tenant, SnapshotKey(id));
  if (status.code() == Code::kNotFound) return NotFound("there is no session or snapshot ", id);
  return status;
}

Result<SessionTable::Listing> SessionTable::List(const std::string& tenant) {
  Tidy();
  Listing listing;
  const auto now = options_.now();
  for (const Entry& entry : entries_) {
    if (entry.key.first != tenant) continue;
    if (entry.is_snapshot) {
      listing.snapshots.push_back({entry.key.second, entry.bytes, Since(entry.created, now)});
    } else {
      listing.sessions.push_back(Describe(entry));
    }
  }
  if (options_.store == nullptr) return listing;
  PS_ASSIGN_OR_RETURN(const auto sessions, options_.store->List(tenant, SessionKey("")));
  for (const StoredInfo& stored : sessions) {
    const std::string id = stored.key.substr(SessionKey("").size());
    if (places_.contains({tenant, id})) continue;
    SessionInfo info;  // of another replica, or of a process before this one
    info.id = id;
    info.bytes = stored.bytes;
    info.durable = true;
    info.idle = Since(stored.created, now);
    listing.sessions.push_back(std::move(info));
  }
  PS_ASSIGN_OR_RETURN(const auto snapshots, options_.store->List(tenant, SnapshotKey("")));
  for (const StoredInfo& stored : snapshots) {
    listing.snapshots.push_back(
        {stored.key.substr(SnapshotKey("").size()), stored.bytes, Since(stored.created, now)});
  }
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
    const Result<uint64_t> put = options_.store->Put(tenant, SnapshotKey(key), bytes, ttl);
    CountError(put.status());
    if (!put.ok()) return put.status();
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
  const auto stored = options_.store->Get(tenant, SnapshotKey(key));
  if (stored.status().code() == Code::kNotFound) return none;
  if (!stored.ok()) return stored.status();
  PS_ASSIGN_OR_RETURN(std::shared_ptr<const Snapshot> snapshot,
                      options_.codec.Decode(AsText(stored->bytes)));
  return Create(tenant, durable, ttl, std::move(snapshot));
}

Result<std::string> SessionTable::PutStopped(const std::string& tenant, const Snapshot& snapshot,
                                             milliseconds ttl) {
  PS_RETURN_IF_ERROR(RequireStore("a stopped completion"));
  const std::string token = NewStateKey();
  const Result<uint64_t> put =
      options_.store->Put(tenant, StoppedKey(token), options_.codec.Encode(snapshot), ttl);
  CountError(put.status());
  if (!put.ok()) return put.status();
  return token;
}

Result<std::shared_ptr<const Snapshot>> SessionTable::GetStopped(const std::string& tenant,
                                                                 const std::string& token) {
  const Status none = NotFound("resume_token: there is no stopped completion ", token);
  if (options_.store == nullptr || !IsStateKey(token)) return none;
  const auto stored = options_.store->Get(tenant, StoppedKey(token));
  if (stored.status().code() == Code::kNotFound) return none;
  if (!stored.ok()) return stored.status();
  return options_.codec.Decode(AsText(stored->bytes));
}

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

// --- parts ---

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
  const Result<StoredInfo> stored = options_.store->Stat(key.first, SessionKey(key.second));
  if (stored.status().code() == Code::kNotFound) {  // deleted or expired elsewhere
    Remove(place);
    return NoSession(key.second);
  }
  if (!stored.ok()) return stored.status();
  if (stored->revision != place->revision) return Load(key);
  CountError(options_.store->Touch(key.first, SessionKey(key.second), place->ttl));
  return place;
}

Result<SessionTable::Place> SessionTable::Load(const Key& key) {
  const auto stored = options_.store->Get(key.first, SessionKey(key.second));
  CountError(stored.status());
  if (stored.status().code() == Code::kNotFound) return NoSession(key.second);
  if (!stored.ok()) return stored.status();
  PS_ASSIGN_OR_RETURN(SessionRecord record, DecodeSession(AsText(stored->bytes), options_.codec));
  Place place = Find(key);
  if (place == entries_.end()) {
    Entry entry;
    entry.key = key;
    entry.used = options_.now();
    place = Insert(std::move(entry));
  }
  place->durable = record.durable;
  place->ttl = record.ttl;
  place->created = record.created;
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
      EncodeSession({entry->durable, entry->ttl, entry->created, entry->snapshot}, options_.codec);
  const auto put =
      options_.store->Put(entry->key.first, SessionKey(entry->key.second), bytes, entry->ttl);
  CountError(put.status());
  if (!put.ok()) return put.status();
  entry->stored = true;
  entry->revision = *put;
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
                           " are allowed (--state-memory); with --state-store "
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

Status SessionTable::CheckCount(const std::string& tenant, int more, bool snapshots) {
  int64_t count = more;
  for (const Entry& entry : entries_) {
    if (entry.key.first == tenant && entry.is_snapshot == snapshots) ++count;
  }
  if (count <= options_.max_per_tenant && options_.store != nullptr) {
    const std::string prefix = snapshots ? SnapshotKey("") : SessionKey("");
    PS_ASSIGN_OR_RETURN(const auto stored, options_.store->List(tenant, prefix));
    for (const StoredInfo& info : stored) {
      if (!places_.contains({tenant, info.key.substr(prefix.size())})) ++count;
    }
  }
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

Status SessionTable::RequireStore(const char* what) const {
  if (options_.store != nullptr) return Status();
  return FailedPrecondition(what, " needs a store, and this server has none (--state-store)");
}

void SessionTable::CountError(const Status& status) {
  if (status.ok() || status.code() == Code::kNotFound) return;
  LogWarning("state_store", {{"error", status.message()}});
  std::lock_guard lock(mutex_);
  ++stats_.store_errors;
}

SessionStats SessionTable::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace polysketch
