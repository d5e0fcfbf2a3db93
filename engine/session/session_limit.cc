// The number of sessions and snapshots that a tenant has: in memory, in the store, and being made.
#include <algorithm>

#include "engine/session/session_keys.h"
#include "engine/session/session_table.h"
#include "engine/store/state_key.h"

namespace polysketch {
namespace {

using std::chrono::steady_clock;

// For this long a number of entries that the store told is believed when another one is written.
constexpr std::chrono::seconds kCountAge{1};
// The number of stored entries of a tenant that creates none is forgotten after this.
constexpr std::chrono::minutes kForgetCount{10};

}  // namespace

Result<SessionTable::Places> SessionTable::TakePlaces(const SessionUser& user, int more,
                                                      bool snapshots, bool ask_store) {
  const Kind kind = {user.tenant, snapshots};
  // Principals that name no tenant are one tenant, in which none fills the limit against another.
  // The entries of a store do not tell whose they are.
  const bool shares_tenant = user.tenant.empty() && options_.store == nullptr;
  const Principal* const maker = shares_tenant ? &user.principal : nullptr;
  std::vector<std::string> ids(static_cast<size_t>(more));
  for (std::string& id : ids) id = NewStateKey();
  bool known = false;
  const auto take = [&] {
    std::lock_guard lock(mutex_);
    Sweep();
    const auto stored = only_stored_.find(kind);
    known = stored != only_stored_.end() && stored->second.known.has_value() &&
            options_.now() - *stored->second.known < kCountAge;
    if (ask_store && !known && options_.store != nullptr) return false;
    if (CountKnown(kind, maker) + more > options_.max_per_tenant) return false;
    places_[kind].insert(ids.begin(), ids.end());
    return true;
  };
  if (take()) return Places(this, kind, std::move(ids));
  if (options_.store != nullptr && !known) {
    PS_RETURN_IF_ERROR(CountOnlyStored(kind, /*exactly=*/false));
    if (take()) return Places(this, kind, std::move(ids));
  }
  if (options_.store != nullptr) {
    PS_RETURN_IF_ERROR(CountOnlyStored(kind, /*exactly=*/true));
    if (take()) return Places(this, kind, std::move(ids));
  }
  while (!snapshots && EvictOneOf(user)) {
    if (take()) return Places(this, kind, std::move(ids));
  }
  return ResourceExhausted("a tenant may have ", options_.max_per_tenant,
                           snapshots ? " snapshots" : " sessions", "; delete some first")
      .WithReason(Reason::kTooManySessions);
}

bool SessionTable::EvictOneOf(const SessionUser& user) {
  // As after a restart, the store may hold sessions that this process does not know. Their last
  // write is their last use, and they do not tell of which principal of the tenant they are.
  std::vector<StoredInfo> stored;
  const std::string prefix = SessionKey("");
  if (options_.store != nullptr) {
    auto listed = Counted("list", options_.store->List(user.tenant, prefix));
    if (listed.ok()) stored = *std::move(listed);
  }
  std::string id;
  {
    std::lock_guard lock(mutex_);
    auto unused = std::chrono::nanoseconds::min();
    const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& one) {
      return one.key.first == user.tenant && one.principal.name == user.principal.name &&
             one.head.evictable && !one.leased && !one.held;
    });
    if (entry != entries_.end()) {
      id = entry->key.second;
      unused = options_.now() - entry->used;
    }
    const auto date = options_.date();
    for (const StoredInfo& one : stored) {
      std::string stored_id = one.key.substr(prefix.size());
      if (date - one.created <= unused || index_.contains({user.tenant, stored_id})) continue;
      const auto head = DecodeSessionHead(one.head);
      if (!head.ok() || !head->evictable) continue;
      id = std::move(stored_id);
      unused = date - one.created;
    }
    if (id.empty()) return false;
    ++stats_.evicted;
  }
  return Delete(user.tenant, id).ok();
}

// Entries come and go while the store answers. An entry that it may or may not have counted is
// told apart by its id, or else counted twice: what is known is never too small.
Status SessionTable::CountOnlyStored(const Kind& kind, bool exactly) {
  const auto& [tenant, snapshots] = kind;
  const std::string prefix = snapshots ? SnapshotKey("") : SessionKey("");
  std::map<std::string, uint64_t> before;
  size_t added_before = 0;
  {
    std::lock_guard lock(mutex_);
    if (!snapshots) before = StoredRevisions(tenant);
    OnlyStored& stored = only_stored_[kind];
    ++stored.asks;
    added_before = stored.added.size();
  }
  Status status;
  int64_t count = 0;
  std::set<std::string> listed;
  if (exactly) {
    const auto infos = Counted("list", options_.store->List(tenant, prefix));
    status = infos.status();
    if (infos.ok()) {
      for (const StoredInfo& info : *infos) listed.insert(info.key.substr(prefix.size()));
    }
  } else {
    const auto at_most = Counted("count", options_.store->CountAtMost(tenant, prefix));
    status = at_most.status();
    if (at_most.ok()) count = *at_most;
  }

  std::lock_guard lock(mutex_);
  OnlyStored& stored = only_stored_.at(kind);
  for (size_t i = added_before; i < stored.added.size(); ++i) {
    if (!listed.contains(stored.added[i])) ++count;
  }
  if (--stored.asks == 0) stored.added.clear();
  PS_RETURN_IF_ERROR(status);
  const auto places = places_.find(kind);
  for (const std::string& id : listed) {
    const bool placed = places != places_.end() && places->second.contains(id);
    if (!placed && !index_.contains({tenant, id})) ++count;
  }
  for (const auto& [id, revision] : before) {
    const Iterator entry = Find({tenant, id});
    if (entry == entries_.end() || !entry->stored) continue;
    if (!exactly) {
      --count;
    } else if (!listed.contains(id) && entry->revision == revision && !entry->leased &&
               !entry->held) {
      Remove(entry);
    }
  }
  stored.count = std::max<int64_t>(0, count);
  stored.known = options_.now();
  return Status();
}

int64_t SessionTable::CountKnown(const Kind& kind, const Principal* maker) const {
  int64_t count = 0;
  if (const auto places = places_.find(kind); places != places_.end()) {
    count += std::ssize(places->second);
  }
  if (const auto stored = only_stored_.find(kind); stored != only_stored_.end()) {
    count += stored->second.count;
  }
  ForEntriesOf(kind.first, [&](const Entry& entry) {
    const bool counts = maker == nullptr || entry.principal.name == maker->name;
    count += counts && entry.is_snapshot == kind.second;
  });
  return count;
}

void SessionTable::AddOnlyStored(const Kind& kind, int64_t more) {
  const auto found = only_stored_.find(kind);
  if (found == only_stored_.end()) return;
  found->second.count = std::max<int64_t>(0, found->second.count + more);
}

void SessionTable::AddStoredSnapshot(const std::string& tenant, const std::string& id) {
  const auto found = only_stored_.find({tenant, true});
  if (found == only_stored_.end()) return;
  ++found->second.count;
  if (found->second.asks > 0) found->second.added.push_back(id);
}

void SessionTable::ForgetCounts(steady_clock::time_point now) {
  std::erase_if(only_stored_, [now](const auto& counted) {
    const OnlyStored& stored = counted.second;
    return stored.asks == 0 && (!stored.known.has_value() || now - *stored.known >= kForgetCount);
  });
}

std::map<std::string, uint64_t> SessionTable::StoredRevisions(const std::string& tenant) const {
  std::map<std::string, uint64_t> revisions;
  ForEntriesOf(tenant, [&](const Entry& entry) {
    if (entry.stored) revisions[entry.key.second] = entry.revision;
  });
  return revisions;
}

}  // namespace polysketch
