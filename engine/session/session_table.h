// Sessions: sequences with a name that wait for their next request, and snapshots and stopped
// completions beside them. A session is an immutable snapshot; a request takes it, runs, and puts
// another in its place, so a request that fails leaves it as it was and a fork is a reference.
//
// Tiers. States of running requests are the engine's. Here they rest in memory, up to a budget; the
// least recently used go to the store, if there is one. Without a store nothing is dropped: what
// does not fit is refused with RESOURCE_EXHAUSTED.
//
// Stores are shared among replicas. What another one has written since is noticed by its revision
// and read again; a session may move between replicas, and must not be used by two at once (an
// expected position tells).
//
// Tenants: another one's session or snapshot is NOT_FOUND.
//
// Threads: calls block on the store, so all but Release and stats are made by one thread, the
// server's store thread.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/session/memory_ledger.h"
#include "engine/session/session_record.h"
#include "engine/store/state_store.h"

namespace polysketch {

struct SessionOptions {
  SnapshotCodec codec;
  StateStore* store = nullptr;  // null: memory only
  size_t memory = 0;            // bytes of snapshots in memory
  int max_per_tenant = 1000;    // sessions, and as many snapshots
  std::chrono::milliseconds default_ttl = std::chrono::hours(24);
  std::chrono::milliseconds max_ttl = std::chrono::hours(24 * 365);
  std::function<std::chrono::system_clock::time_point()> now = [] {
    return std::chrono::system_clock::now();
  };
  // Told whenever the bytes in memory change.
  std::function<void(size_t)> on_memory = [](size_t) {};
};

struct SessionInfo {
  std::string id;
  int64_t tokens = 0;
  int64_t bytes = 0;
  bool durable = false;
  bool in_memory = false;
  std::chrono::milliseconds age{0};
  std::chrono::milliseconds idle{0};
  std::chrono::milliseconds ttl{0};
};

struct SnapshotInfo {
  std::string key;
  int64_t bytes = 0;
  std::chrono::milliseconds age{0};
};

struct SessionStats {
  int sessions = 0;  // known to this process
  size_t memory_bytes = 0;
  size_t memory_limit = 0;
  int64_t loads = 0;   // from the store
  int64_t spills = 0;  // to make room
  int64_t writes = 0;  // to the store, spills included
  int64_t written_bytes = 0;
  int64_t store_errors = 0;
  StoreUsage store = {};
};

class SessionTable;

// A session that a request is using. Let go of without Commit it stays as it was.
class SessionLease {
 public:
  SessionLease(SessionLease&& other) noexcept
      : table_(std::exchange(other.table_, nullptr)),
        key_(std::move(other.key_)),
        snapshot_(std::move(other.snapshot_)) {}
  SessionLease& operator=(SessionLease&&) = delete;
  ~SessionLease();

  // Null while it is empty.
  const std::shared_ptr<const Snapshot>& snapshot() const { return snapshot_; }
  int64_t tokens() const { return snapshot_ == nullptr ? 0 : snapshot_->tokens(); }
  const std::string& id() const { return key_.second; }

 private:
  friend class SessionTable;
  using Key = std::pair<std::string, std::string>;  // tenant, id
  SessionLease(SessionTable* table, Key key, std::shared_ptr<const Snapshot> snapshot)
      : table_(table), key_(std::move(key)), snapshot_(std::move(snapshot)) {}

  SessionTable* table_;
  Key key_;
  std::shared_ptr<const Snapshot> snapshot_;
};

class SessionTable {
 public:
  // The store outlives it.
  explicit SessionTable(SessionOptions options);

  // ttl 0: the default. RESOURCE_EXHAUSTED over the tenant's limit. `start`: what the session
  // begins with; may be null. A durable one needs a store (FAILED_PRECONDITION).
  Result<SessionInfo> Create(const std::string& tenant, bool durable, std::chrono::milliseconds ttl,
                             std::shared_ptr<const Snapshot> start = nullptr);
  // ABORTED when another request has it; FAILED_PRECONDITION when it is not at `expected` tokens.
  Result<SessionLease> Acquire(const std::string& tenant, const std::string& id,
                               std::optional<int64_t> expected);
  // Puts `snapshot` in its place and lets go of it. A durable session is in the store when this
  // returns OK; after an error the session is as it was.
  Result<SessionInfo> Commit(SessionLease lease, std::shared_ptr<const Snapshot> snapshot);
  // `count` sessions of the same length, durable and living as long as this one.
  Result<std::vector<SessionInfo>> Fork(const std::string& tenant, const std::string& id, int count,
                                        std::optional<int64_t> expected);
  // A copy under a key of its own.
  Result<SnapshotInfo> TakeSnapshot(const std::string& tenant, const std::string& id,
                                    std::chrono::milliseconds ttl);
  Result<SessionInfo> Restore(const std::string& tenant, const std::string& key, bool durable,
                              std::chrono::milliseconds ttl);
  struct Listing {
    std::vector<SessionInfo> sessions;
    std::vector<SnapshotInfo> snapshots;
  };
  Result<Listing> List(const std::string& tenant);
  // A session or a snapshot.
  Status Delete(const std::string& tenant, const std::string& id);

  // A stopped completion: into the store, under a token that any replica takes.
  Result<std::string> PutMigrated(const std::string& tenant, const Snapshot& snapshot,
                                  std::chrono::milliseconds ttl);
  Result<std::shared_ptr<const Snapshot>> GetMigrated(const std::string& tenant,
                                                      const std::string& token);

  // Writes every session that the store does not have, so that another replica can go on, and from
  // now on each one that changes.
  void Flush();

  // --- any thread ---
  SessionStats stats() const;
  const SessionOptions& options() const { return options_; }

 private:
  friend class SessionLease;
  using Key = SessionLease::Key;
  struct Entry {
    Key key;
    std::shared_ptr<const Snapshot> snapshot;  // null: empty, or only in the store
    int64_t tokens = 0;
    int64_t bytes = 0;
    bool durable = false;
    bool in_memory = true;
    bool stored = false;       // the store has exactly this, as `revision`
    bool busy = false;         // guarded by mutex_: leases end on any thread
    bool is_snapshot = false;  // kept under a key, for want of a store
    uint64_t revision = 0;
    std::chrono::milliseconds ttl{0};
    std::chrono::system_clock::time_point created;
    std::chrono::system_clock::time_point used;
  };
  using Place = std::list<Entry>::iterator;

  // A new session, its count checked.
  Result<SessionInfo> Make(const std::string& tenant, bool durable, std::chrono::milliseconds ttl,
                           std::shared_ptr<const Snapshot> start);
  void Release(const Key& key);
  Place Find(const Key& key);
  // Finds it here or in the store, as it is now; not used by anybody.
  Result<Place> Look(const Key& key);
  Result<Place> Load(const Key& key);
  Place Insert(Entry entry);
  void Remove(Place place);
  void SetSnapshot(Place place, std::shared_ptr<const Snapshot> snapshot);
  Status Write(Entry* entry);
  // Drops from memory what the store has.
  void LeaveToStore(Place place);
  // Moves the least recently used to the store until the memory fits; RESOURCE_EXHAUSTED when it
  // cannot.
  Status MakeRoom();
  // Before an operation: what is too much in memory leaves it, what has expired goes.
  void Tidy();
  Status CheckCount(const std::string& tenant, int more, bool snapshots);
  Result<std::chrono::milliseconds> Ttl(std::chrono::milliseconds asked) const;
  SessionInfo Describe(const Entry& entry) const;
  // One that this process does not hold, or not as it is now.
  SessionInfo Describe(const std::string& id, const StoredInfo& stored);
  Status RequireStore(const char* what) const;
  // NOT_FOUND is `none`.
  Result<std::shared_ptr<const Snapshot>> GetSnapshot(const std::string& tenant,
                                                      const std::string& key, const Status& none);
  // Counts and logs what the store failed to do, entries that came back damaged included. That
  // there is no such entry is no failure.
  void CountError(const char* operation, const Status& status);
  template <typename T>
  Result<T> Counted(const char* operation, Result<T> result) {
    CountError(operation, result.status());
    return result;
  }
  Status Counted(const char* operation, Status status) {
    CountError(operation, status);
    return status;
  }

  const SessionOptions options_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // least recently used first; the store thread's but for Entry::busy
  std::map<Key, Place> places_;  // guarded by mutex_ when changed
  MemoryLedger ledger_;
  bool write_through_ = false;
  SessionStats stats_;  // guarded by mutex_
  std::chrono::system_clock::time_point last_sweep_;
  std::chrono::system_clock::time_point last_store_sweep_;
};

}  // namespace polysketch
