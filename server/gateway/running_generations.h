// The generations that Abort can end, by tenant and request id.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/rpc/engine_call.h"

namespace polysketch {

// Thread-safe. Clients choose the ids, so several generations may have the same.
class RunningGenerations : public std::enable_shared_from_this<RunningGenerations> {
  using Key = std::pair<std::string, std::string>;  // tenant, request id
  using Calls = std::multimap<Key, std::weak_ptr<EngineCall>>;

 public:
  // Keeps a generation registered.
  class Entry {
   public:
    Entry(std::shared_ptr<RunningGenerations> owner, Calls::iterator at)
        : owner_(std::move(owner)), at_(at) {}
    ~Entry() {
      std::lock_guard lock(owner_->mutex_);
      owner_->calls_.erase(at_);
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    const std::shared_ptr<RunningGenerations> owner_;
    const Calls::iterator at_;
  };

  std::unique_ptr<Entry> Add(const std::string& id, EngineCall* call) {
    std::lock_guard lock(mutex_);
    return std::make_unique<Entry>(shared_from_this(),
                                   calls_.emplace(Key(call->tenant(), id), call->weak_from_this()));
  }

  // Ends the generations of the tenant with this id.
  void Abort(const std::string& tenant, const std::string& id) {
    std::vector<std::shared_ptr<EngineCall>> calls;  // destroyed without the lock
    {
      std::lock_guard lock(mutex_);
      const auto [first, last] = calls_.equal_range(Key(tenant, id));
      for (auto at = first; at != last; ++at) calls.push_back(at->second.lock());
    }
    for (const auto& call : calls) {
      if (call != nullptr) call->Fail(Status(Code::kCancelled, "the request was aborted"));
    }
  }

 private:
  std::mutex mutex_;
  Calls calls_;  // guarded by mutex_
};

}  // namespace polysketch
