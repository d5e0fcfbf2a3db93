// Sessions: sequences with an id that wait for their next request; snapshots and migrated
// completions beside them. A session is an immutable Snapshot. A request leases it, runs, and
// commits another one in its place, so that a request that fails leaves the session unchanged, and
// a fork is a reference.
//
// Tiers: the states of running requests are the engine's. The table keeps snapshots in memory up to
// a limit. The least recently used ones move to the store, if there is one: first those of
// principals that hold more than an equal share. Without a store a session is a promise to its
// client, and none is dropped but evictable ones: the least recently used of the principal that
// holds the most, or of the one that needs room. A snapshot that does not fit then is refused with
// RESOURCE_EXHAUSTED, and so is one more state beyond the share of its principal (Shares::Fits), so
// that there is room for one that comes later. The first state of a principal needs to fit only,
// and a session that has a state of its own may grow. Reserve finds the room before a request runs.
//
// A session counts for the principal that made it, wrote it last, or had it read from the store.
//
// Replicas share a store. A session that another replica has written is recognised by its revision
// and read again. A session may move between replicas, but two must not use it at the same time; an
// expected position detects that.
//
// Tenants: the sessions and snapshots of another tenant are NOT_FOUND.
//
// Threads: thread-safe. A method that needs the store blocks until it has answered; NeedsStore says
// whether one may. The lock is not held meanwhile, so that a slow store delays the operations that
// need it and no other. Operations on one session run one after the other.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/shares.h"
#include "engine/session/memory_ledger.h"
#include "engine/session/session_record.h"
#include "engine/session/stored_blocks.h"
#include "engine/store/state_store.h"

namespace polysketch {

struct SessionOptions {
  SnapshotCodec codec;
  StateStore* store = nullptr;  // null: memory only
  size_t memory = 0;            // bytes of snapshots in memory
  int max_per_tenant = 1000;    // sessions; the same number of snapshots
  // Bytes of the state of a sequence of at most `tokens` tokens. Null: Reserve does nothing.
  std::function<size_t(int64_t tokens)> state_bytes = nullptr;
  std::chrono::milliseconds default_ttl = std::chrono::hours(24);
  std::chrono::milliseconds max_ttl = std::chrono::hours(24 * 365);
  // Of use and expiry in memory: a jump of the system clock must not end a session.
  std::function<std::chrono::steady_clock::time_point()> now = [] {
    return std::chrono::steady_clock::now();
  };
  // Of creation, which replicas and restarts share.
  std::function<std::chrono::system_clock::time_point()> date = [] {
    return std::chrono::system_clock::now();
  };
  // Called with the bytes in memory whenever they change.
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
  int sessions = 0;  // entries of this process: sessions and, without a store, snapshots
  size_t memory_bytes = 0;
  size_t memory_limit = 0;
  int64_t loads = 0;    // from the store
  int64_t spills = 0;   // to the store, to free memory
  int64_t evicted = 0;  // evictable sessions, to make room
  int64_t writes = 0;   // to the store, spills included
  int64_t written_bytes = 0;
  int64_t store_errors = 0;
  StoreUsage store = {};
};

// Who uses a session.
struct SessionUser {
  std::string tenant;        // whose sessions and snapshots it finds
  Principal principal = {};  // whose session memory they take
};

class SessionTable;

// The exclusive use of a session by a request. A lease that is destroyed without Commit leaves the
// session unchanged. Any thread may destroy it.
class SessionLease {
 public:
  SessionLease(SessionLease&& other) noexcept
      : table_(std::exchange(other.table_, nullptr)),
        key_(std::move(other.key_)),
        principal_(std::move(other.principal_)),
        snapshot_(std::move(other.snapshot_)),
        reserved_(std::exchange(other.reserved_, 0)) {}
  SessionLease& operator=(SessionLease&&) = delete;
  ~SessionLease();

  // Null while the session is empty.
  const std::shared_ptr<const Snapshot>& snapshot() const { return snapshot_; }
  int64_t tokens() const { return snapshot_ == nullptr ? 0 : snapshot_->tokens(); }
  const std::string& id() const { return key_.second; }

 private:
  friend class SessionTable;
  using Key = std::pair<std::string, std::string>;  // tenant, id
  SessionLease(SessionTable* table, Key key, Principal principal,
               std::shared_ptr<const Snapshot> snapshot)
      : table_(table),
        key_(std::move(key)),
        principal_(std::move(principal)),
        snapshot_(std::move(snapshot)) {}

  SessionTable* table_;
  Key key_;
  Principal principal_;
  std::shared_ptr<const Snapshot> snapshot_;
  int64_t reserved_ = 0;  // bytes; guarded by the table's mutex
};

class SessionTable {
 public:
  // The store outlives the table.
  explicit SessionTable(SessionOptions options);

  // Whether Create of `durable` sessions may wait for the store. These three functions do not
  // block. Their answer may be outdated when the operation runs, so that it may wait all the same.
  bool CreateNeedsStore(const std::string& tenant, bool durable) const;
  // Whether Acquire, Fork or Delete of this session may.
  bool NeedsStore(const std::string& tenant, const std::string& id) const;
  // Whether Commit of this snapshot may.
  bool CommitNeedsStore(const SessionLease& lease, const Snapshot& snapshot) const;

  // How long a session stays, beside its ttl.
  enum class Keep {
    kEvictable,  // until its room, in memory or in the tenant's limit, is needed for another one
    kPassing,    // until the end of the process
    kDurable,
  };
  // ttl 0: the default. `start`: the snapshot that the session begins with; null: an empty session.
  // RESOURCE_EXHAUSTED above the tenant's limit; FAILED_PRECONDITION for a durable session without
  // a store; INVALID_ARGUMENT for a ttl out of range.
  //
  // The limit counts the sessions that this process knows, spilled ones included, and the others
  // that the store held when it was last asked, at most a second ago for a durable session. The
  // store is asked again before a session is refused. Replicas that create at the same time may
  // together exceed the limit.
  Result<SessionInfo> Create(const SessionUser& user, Keep keep, std::chrono::milliseconds ttl,
                             std::shared_ptr<const Snapshot> start = nullptr);
  Result<SessionInfo> Create(const SessionUser& user, bool durable, std::chrono::milliseconds ttl,
                             std::shared_ptr<const Snapshot> start = nullptr) {
    return Create(user, durable ? Keep::kDurable : Keep::kPassing, ttl, std::move(start));
  }
  // ABORTED while another request has the lease; FAILED_PRECONDITION if the session does not have
  // `expected` tokens; NOT_FOUND for an unknown session.
  Result<SessionLease> Acquire(const SessionUser& user, const std::string& id,
                               std::optional<int64_t> expected);
  // Finds room for the state of a session that will have at most `tokens` tokens, until the lease
  // ends: evicts evictable sessions. RESOURCE_EXHAUSTED as Commit, with the time after which enough
  // sessions have expired, if there is one. Does nothing with a store, where sessions move.
  Status Reserve(SessionLease* lease, int64_t tokens);
  // Replaces the snapshot and ends the lease. OK means that a durable session is in the store.
  // After an error the session is unchanged.
  Result<SessionInfo> Commit(SessionLease lease, std::shared_ptr<const Snapshot> snapshot);
  // Makes `count` sessions with the same snapshot, head and time to live. After an error none
  // of them remains.
  Result<std::vector<SessionInfo>> Fork(const SessionUser& user, const std::string& id, int count,
                                        std::optional<int64_t> expected);
  // Takes a snapshot of the session, under a new key. FAILED_PRECONDITION for an empty session.
  Result<SnapshotInfo> TakeSnapshot(const SessionUser& user, const std::string& id,
                                    std::chrono::milliseconds ttl);
  Result<SessionInfo> Restore(const SessionUser& user, const std::string& key, bool durable,
                              std::chrono::milliseconds ttl);
  struct Listing {
    std::vector<SessionInfo> sessions;
    std::vector<SnapshotInfo> snapshots;
  };
  Result<Listing> List(const std::string& tenant);
  // Deletes a session or a snapshot.
  Status Delete(const std::string& tenant, const std::string& id);

  // Stores a migrated completion. Returns the resume token, with which any replica gets it.
  Result<std::string> PutMigrated(const std::string& tenant, const Snapshot& snapshot,
                                  std::chrono::milliseconds ttl);
  Result<std::shared_ptr<const Snapshot>> GetMigrated(const std::string& tenant,
                                                      const std::string& token);

  // Moves sessions to the store until the rest fits into memory, removes expired ones, and lets the
  // store do the same. Called every second or so.
  void Maintain();

  // Writes every session that the store does not hold in its current revision, and from now on
  // every session that changes, so that other replicas can continue them.
  void Flush();

  SessionStats stats() const;
  const SessionOptions& options() const { return options_; }

 private:
  friend class SessionLease;
  using Key = SessionLease::Key;
  struct Entry {
    Key key;
    Principal principal = {};  // whose session memory the snapshot takes
    SessionHead head = {};
    std::shared_ptr<const Snapshot> snapshot = {};  // null: empty, or only in the store
    int64_t bytes = 0;
    bool in_memory = true;
    bool stored = false;    // the store holds this snapshot, as `revision`, unless another replica
                            // has written since, or the outcome of a write is unknown
    bool in_store = false;  // the store may hold a snapshot of the session, of any revision
    bool leased = false;
    bool held = false;         // by an operation that has released mutex_: see Hold
    bool is_snapshot = false;  // a snapshot and not a session; only without a store
    uint64_t revision = 0;
    StoredBlocks blocks = {};
    std::chrono::steady_clock::time_point used = {};
  };
  using Iterator = std::list<Entry>::iterator;
  using Lock = std::unique_lock<std::mutex>;
  using Kind = std::pair<std::string, bool>;  // tenant, whether its snapshots and not its sessions

  // The exclusive use of an entry by an operation that releases mutex_ to wait for the store. Made
  // and ended with mutex_ held.
  class Hold;
  // Places of new sessions or snapshots of a tenant, so that operations at once stay within the
  // limit. Made and destroyed without mutex_.
  class Places;

  // Runs `wait` without the lock.
  template <typename Wait>
  static auto Unlocked(Lock* lock, const Wait& wait) -> decltype(wait()) {
    lock->unlock();
    auto result = wait();
    lock->lock();
    return result;
  }

  // --- session_residence.cc: mutex_ is held, and `lock` holds it. A function that takes `lock`
  // --- may release it for a while, and then entries may change that are neither leased nor held.
  Iterator Find(const Key& key);
  // Waits until no operation holds the entry. entries_.end() for an unknown key.
  Iterator FindFree(Lock* lock, const Key& key);
  // Finds a session that is neither leased nor held, in memory or in the store, in its latest
  // revision.
  Result<Iterator> FindLatest(Lock* lock, const Key& key, const Principal& principal);
  // Reads a session from the store into the session memory of `principal`.
  Result<Iterator> Load(Lock* lock, const Key& key, const Principal& principal);
  Iterator Insert(Entry entry);
  void Remove(Iterator entry);
  // Removes an entry that the store may still hold.
  void Forget(Iterator entry);
  // Replaces the snapshot. `principal`: whose session memory takes it; without it that of the
  // entry.
  void SetSnapshot(Iterator entry, std::shared_ptr<const Snapshot> snapshot) {
    SetSnapshot(entry, std::move(snapshot), Principal(entry->principal));
  }
  void SetSnapshot(Iterator entry, std::shared_ptr<const Snapshot> snapshot, Principal principal);
  // Writes a session that the caller holds.
  Status Write(Lock* lock, Iterator entry);
  // Drops a snapshot that the store holds from memory.
  void DropFromMemory(Iterator entry);
  // Moves the least recently used sessions to the store until the rest fits. RESOURCE_EXHAUSTED if
  // it does not fit without a store; an error of the store if a session could not be written.
  Status MakeRoom(Lock* lock, const Entry* except = nullptr);
  // Moves sessions of which `moves` is true to the store until the rest fits. Returns the first
  // error of the store.
  Status Spill(Lock* lock, const std::function<bool(const Entry&)>& moves);
  // Whether the entry has a state in memory that it shares with no other one of its client.
  bool OwnsState(const Entry& entry) const;
  // What its principal holds less without the entry, which has a snapshot in memory.
  int64_t BytesToRemove(const Entry& entry) const;
  // Called after a change of the entry, which owned a state before or not. Without a store:
  // RESOURCE_EXHAUSTED if the entry owns one now, beyond the share of its principal.
  Status CheckShare(const Entry& entry, bool owned_before);
  // Adds a snapshot of the principal to what is held, or removes it. Null is ignored.
  void ChangeHeld(const Principal& principal, const Snapshot* snapshot,
                  void (MemoryLedger::*change)(const Snapshot*));
  // Takes the snapshot of an entry off what is held, to find what fits without it, until PutBack.
  void TakeOff(Iterator entry, std::vector<Iterator>* taken);
  void PutBack(const std::vector<Iterator>& taken);
  // Evicts until one that holds `entry` has room for `more` bytes, or none. `grows`: of a state that it has.
  Status MakeShare(const Principal& principal, int64_t more, bool grows, const Entry* entry);
  // The evictable entry, none of `taken`, that gives way to `more` bytes of the principal; the end: none.
  Iterator Evictable(const Principal& principal, int64_t more, const Entry* except,
                     const std::vector<Iterator>& taken);
  // After this time enough sessions have expired for the bytes to fit. nullopt: they never do.
  std::optional<std::chrono::milliseconds> TimeUntilFit(const Principal& principal, int64_t more,
                                                        bool grows);
  bool Fits(const Principal& principal, int64_t more, bool grows) const;
  void SetReserved(SessionLease* lease, int64_t bytes);
  int64_t free_memory() const {
    return static_cast<int64_t>(options_.memory) - static_cast<int64_t>(memory_.bytes()) -
           reserved_;
  }
  // Removes expired entries from memory, at most once in a second.
  void Sweep();
  void MarkUsed(Iterator entry);

  // --- session_residence.cc: mutex_ is not held ---
  void Release(SessionLease* lease);
  // Stores a session: what *blocks, those that its record names in the store, lack, and a new
  // record. Sets *blocks to those that this one names. Returns its revision.
  Result<uint64_t> WriteRecord(const Key& key, SessionRecord record, StoredBlocks* blocks);
  struct StoredRecord {
    uint64_t revision = 0;
    SessionRecord record;
  };
  // Reads the record of a session and the blocks that it names.
  Result<StoredRecord> ReadRecord(const Key& key);
  // Deletes the record of a session, and then the blocks that it named.
  Status DeleteRecord(const Key& key);
  // Writes the session, unless the store holds its current revision.
  void FlushOne(const Key& key);

  // --- session_limit.cc ---
  // RESOURCE_EXHAUSTED if the tenant may not have `more`, after the eviction of evictable sessions.
  // `ask_store`: the store is asked if it has not been for a second.
  Result<Places> TakePlaces(const SessionUser& user, int more, bool snapshots, bool ask_store);
  // Deletes the least recently used evictable session of the user, or session of the tenant that
  // only the store holds. Returns whether there was one.
  bool EvictOneOf(const SessionUser& user);
  // Asks the store for the entries that only it holds: their number, or a bound of it that costs
  // less. Removes entries from memory that were deleted elsewhere. mutex_ is not held.
  Status CountOnlyStored(const Kind& kind, bool exactly);
  // The next four functions: mutex_ is held.
  // Number of the tenant's entries: those of index_, places, and what is known of the store.
  // `maker`: of index_ those of this principal only; null: of all.
  int64_t CountKnown(const Kind& kind, const Principal* maker = nullptr) const;
  // Adds to the number of entries that only the store holds, if it is known.
  void AddOnlyStored(const Kind& kind, int64_t more);
  void AddStoredSnapshot(const std::string& tenant, const std::string& id);
  // Forgets the counts of tenants that have created nothing for some time.
  void ForgetCounts(std::chrono::steady_clock::time_point now);
  // Calls visit(entry) for the tenant's entries, by id. mutex_ is held.
  template <typename Visit>
  void ForEntriesOf(const std::string& tenant, const Visit& visit) const {
    for (auto at = index_.lower_bound({tenant, ""});
         at != index_.end() && at->first.first == tenant; ++at) {
      visit(*at->second);
    }
  }
  // Revisions, by id, of the tenant's sessions in memory that the store holds. mutex_ is held.
  std::map<std::string, uint64_t> StoredRevisions(const std::string& tenant) const;

  // --- session_table.cc ---
  // Makes an entry with the id of one of `places`, written to the store if it is durable. Takes
  // that place.
  Result<SessionInfo> InsertNew(Entry entry, std::shared_ptr<const Snapshot> snapshot,
                                Places* places);
  Result<std::chrono::milliseconds> Ttl(std::chrono::milliseconds requested) const;
  SessionInfo Describe(const Entry& entry) const;
  // Describes a session of which only the store holds the latest revision.
  SessionInfo Describe(const std::string& id, const StoredInfo& stored);
  Status RequireStore(const char* what) const;
  // Reads and decodes a snapshot of the store. Returns `missing` if the store does not hold the
  // key.
  Result<std::shared_ptr<const Snapshot>> GetSnapshot(const std::string& tenant,
                                                      const std::string& key,
                                                      const Status& missing);
  // Counts and logs errors of the store, damaged entries included. NOT_FOUND is not an error.
  // mutex_ is not held.
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

  // The entries of a kind that only the store holds.
  struct OnlyStored {
    int64_t count = 0;
    std::optional<std::chrono::steady_clock::time_point> known = {};  // when the store told
    int asks = 0;                    // operations that wait for the store's count
    std::vector<std::string> added;  // ids of snapshots that were stored during these operations
  };

  const SessionOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable free_;  // an operation has ended its hold of an entry
  // Guarded by mutex_:
  std::list<Entry> entries_;  // least recently used first
  std::map<Key, Iterator> index_;
  MemoryLedger memory_;  // of all entries
  // Of the entries of each principal. Those that hold memory. A state or block that several share
  // counts for each of them.
  std::map<Principal, MemoryLedger> ledgers_;
  // Bytes of ledgers_ and those reserved, by principal.
  Shares shares_;
  int64_t reserved_ = 0;                          // bytes
  std::map<Kind, std::set<std::string>> places_;  // ids
  std::map<Kind, OnlyStored> only_stored_;
  bool write_through_ = false;
  SessionStats stats_;
  std::chrono::steady_clock::time_point last_sweep_;
  std::chrono::steady_clock::time_point last_store_sweep_;
};

class SessionTable::Hold {
 public:
  Hold(SessionTable* table, Iterator entry) : table_(table), entry_(entry) { entry_->held = true; }
  ~Hold() { End(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  void End() {
    if (table_ == nullptr) return;
    entry_->held = false;
    std::exchange(table_, nullptr)->free_.notify_all();
  }

 private:
  SessionTable* table_;
  const Iterator entry_;
};

class SessionTable::Places {
 public:
  // The caller has added `ids` to table->places_.
  Places(SessionTable* table, Kind kind, std::vector<std::string> ids)
      : table_(table), kind_(std::move(kind)), ids_(std::move(ids)) {}
  Places(Places&& other) noexcept
      : table_(other.table_), kind_(std::move(other.kind_)), ids_(std::exchange(other.ids_, {})) {}
  Places& operator=(Places&&) = delete;
  ~Places() {
    if (ids_.empty()) return;
    std::lock_guard lock(table_->mutex_);
    while (!ids_.empty()) TakeOne();
  }

  // Id of the entry that takes the next place.
  const std::string& id() const { return ids_.back(); }
  // The place of id() is now an entry's. mutex_ held.
  void TakeOne() {
    const auto found = table_->places_.find(kind_);
    found->second.erase(ids_.back());
    ids_.pop_back();
    if (found->second.empty()) table_->places_.erase(found);
  }

 private:
  SessionTable* const table_;
  Kind kind_;
  std::vector<std::string> ids_;
};

}  // namespace polysketch
