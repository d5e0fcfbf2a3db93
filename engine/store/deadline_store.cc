#include "engine/store/deadline_store.h"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "base/running_work.h"
#include "base/thread_name.h"

namespace polysketch {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Neither are owners or keys of entries.
constexpr char kAllOwners[] = "/";
constexpr char kListing[] = "/";

// Interval in which the thread of a caller that waits moves.
constexpr milliseconds kCallerMoves{500};

struct Operation {
  std::string owner, key;
  std::function<void()> run;
  bool done = false;  // guarded by HangingThreads::mutex_
};

// Threads for operations that may hang: as many as run at once. Shared with them, because one that
// hangs outlives the store.
class HangingThreads : public std::enable_shared_from_this<HangingThreads> {
 public:
  explicit HangingThreads(milliseconds wait) : wait_(wait) {}

  // Later, when some hang, the machine may give no more.
  void StartThreads(int count) {
    std::lock_guard lock(mutex_);
    for (int i = 0; i < count; ++i) {
      if (auto worker = NewWorker(); worker != nullptr) idle_.push_back(std::move(worker));
    }
  }

  // Runs `run` on a thread. UNAVAILABLE once it has not moved for the deadline and `more`.
  Status Run(const std::string& owner, const std::string& key, milliseconds more,
             std::function<void()> run) {
    const auto operation = std::make_shared<Operation>();
    operation->owner = owner;
    operation->key = key;
    operation->run = std::move(run);
    std::unique_lock lock(mutex_);
    PS_RETURN_IF_ERROR(CheckHung(owner, key));
    const std::shared_ptr<Worker> worker = TakeIdle();
    if (worker == nullptr) return Unavailable("state store: a thread cannot be started");
    worker->operation = operation;
    worker->work.Start();
    worker->wake.notify_one();
    while (!operation->done) {
      const Clock::time_point end = worker->work.since().value_or(Clock::now()) + wait_ + more;
      if (Clock::now() >= end) return LeaveHung(worker);
      worker->ended.wait_until(lock, std::min(end, Clock::now() + kCallerMoves));
      RunningWork::Moved();  // of the caller, whose wait has an end
    }
    idle_.push_back(worker);
    return Status();
  }

  std::optional<Clock::time_point> hangs_since() {
    std::lock_guard lock(mutex_);
    std::optional<Clock::time_point> oldest;
    for (const auto& worker : hung_) {
      const auto since = worker->work.since();
      if (since && (!oldest || *since < *oldest)) oldest = since;
    }
    return oldest;
  }

  // Ends the threads, but for those that hang: they end with their operations.
  void Stop() {
    std::vector<std::shared_ptr<Worker>> idle;
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      idle.swap(idle_);
      for (const auto& worker : hung_) worker->thread.detach();
    }
    for (const auto& worker : idle) {
      worker->wake.notify_one();
      worker->thread.join();
    }
  }

 private:
  struct Worker {
    std::thread thread;
    RunningWork work;
    std::condition_variable wake, ended;
    std::shared_ptr<Operation> operation;  // null: idle
  };

  // The functions below hold mutex_.

  Status CheckHung(const std::string& owner, const std::string& key) const {
    int of_owner = 0;
    for (const auto& worker : hung_) {
      const Operation& operation = *worker->operation;
      if (operation.owner != owner) continue;
      ++of_owner;
      if (operation.key == key)
        return Unavailable("state store: an earlier operation on the same entry hangs");
    }
    if (of_owner < kMaxHungOfOwner && std::ssize(hung_) < kMaxHung) return Status();
    return Unavailable("state store: expected at most ", kMaxHungOfOwner,
                       " operations of a tenant that hang and ", kMaxHung, " in all, found ",
                       of_owner, " and ", hung_.size());
  }

  // Null if the machine gives no thread.
  std::shared_ptr<Worker> NewWorker() {
    auto worker = std::make_shared<Worker>();
    try {
      worker->thread = std::thread([self = shared_from_this(), worker] { self->Loop(*worker); });
    } catch (const std::system_error&) {
      return nullptr;
    }
    return worker;
  }

  std::shared_ptr<Worker> TakeIdle() {
    if (idle_.empty()) return NewWorker();
    std::shared_ptr<Worker> worker = std::move(idle_.back());
    idle_.pop_back();
    return worker;
  }

  Status LeaveHung(const std::shared_ptr<Worker>& worker) {
    const bool unchanged = worker->work.SetUnwanted();
    hung_.push_back(worker);
    LogError("state_store_hangs",
             {{"wait_ms", wait_.count()}, {"operations", static_cast<int64_t>(hung_.size())}});
    const Status status = Unavailable("state store: expected an answer of the file system within ",
                                      wait_.count(), " ms, found none");
    return unchanged ? status : OutcomeUnknown(status);
  }

  void Loop(Worker& worker) {
    NameThread("ps-store-folder");
    RunningWork::OfThread() = &worker.work;
    std::unique_lock lock(mutex_);
    while (true) {
      worker.wake.wait(lock, [&] { return worker.operation != nullptr || stop_; });
      if (worker.operation == nullptr) return;
      {
        const std::function<void()> run = std::exchange(worker.operation->run, nullptr);
        lock.unlock();
        run();
      }  // `run` is destroyed without the lock
      lock.lock();
      worker.operation->done = true;
      worker.operation = nullptr;
      worker.work.End();
      worker.ended.notify_one();
      const auto hung = std::find_if(hung_.begin(), hung_.end(),
                                     [&](const auto& one) { return one.get() == &worker; });
      // After Stop no thread of this one is left to join.
      if (hung == hung_.end()) continue;
      if (stop_) return;
      idle_.push_back(std::move(*hung));
      hung_.erase(hung);
      LogWarning("state_store_answers", {{"operations", static_cast<int64_t>(hung_.size())}});
    }
  }

  const milliseconds wait_;
  std::mutex mutex_;
  // Guarded by mutex_:
  std::vector<std::shared_ptr<Worker>> idle_;
  std::vector<std::shared_ptr<Worker>> hung_;  // whose callers have left
  bool stop_ = false;
};

class DeadlineStore final : public StateStore {
 public:
  DeadlineStore(std::shared_ptr<StateStore> store, StoreDeadline deadline)
      : store_(std::move(store)),
        deadline_(deadline),
        threads_(std::make_shared<HangingThreads>(deadline.wait)) {
    threads_->StartThreads(deadline.threads);
  }
  ~DeadlineStore() override { threads_->Stop(); }

  std::string_view kind() const override { return store_->kind(); }

  Result<uint64_t> Put(const std::string& owner, const std::string& key, std::string bytes,
                       milliseconds ttl) override {
    const milliseconds more(static_cast<int64_t>(bytes.size()) * 1000 / deadline_.bytes_per_second);
    // A function is copied: the bytes are not.
    const auto shared = std::make_shared<std::string>(std::move(bytes));
    return Run<Result<uint64_t>>(owner, key, more, [owner, key, shared, ttl](StateStore* store) {
      return store->Put(owner, key, std::move(*shared), ttl);
    });
  }
  Result<Entry> Get(const std::string& owner, const std::string& key) override {
    return Run<Result<Entry>>(owner, key, {},
                              [owner, key](StateStore* store) { return store->Get(owner, key); });
  }
  Result<StoredInfo> Stat(const std::string& owner, const std::string& key) override {
    return Run<Result<StoredInfo>>(
        owner, key, {}, [owner, key](StateStore* store) { return store->Stat(owner, key); });
  }
  Status Delete(const std::string& owner, const std::string& key) override {
    return Run<Status>(owner, key, {},
                       [owner, key](StateStore* store) { return store->Delete(owner, key); });
  }
  Status Touch(const std::string& owner, const std::string& key, milliseconds ttl) override {
    return Run<Status>(owner, key, {}, [owner, key, ttl](StateStore* store) {
      return store->Touch(owner, key, ttl);
    });
  }
  Result<StoredInfo> Renew(const std::string& owner, const std::string& key,
                           milliseconds ttl) override {
    return Run<Result<StoredInfo>>(owner, key, {}, [owner, key, ttl](StateStore* store) {
      return store->Renew(owner, key, ttl);
    });
  }
  Result<std::vector<StoredInfo>> List(const std::string& owner,
                                       const std::string& prefix) override {
    return Run<Result<std::vector<StoredInfo>>>(
        owner, kListing, {},
        [owner, prefix](StateStore* store) { return store->List(owner, prefix); });
  }
  Result<int64_t> CountAtMost(const std::string& owner, const std::string& prefix) override {
    return Run<Result<int64_t>>(owner, kListing, {}, [owner, prefix](StateStore* store) {
      return store->CountAtMost(owner, prefix);
    });
  }
  void Expire() override {
    const Status status = Run<Status>(kAllOwners, kListing, {}, [](StateStore* store) {
      store->Expire();
      return Status();
    });
    if (!status.ok())
      LogWarning("state_store_failed", {{"operation", "expire"}, {"why", status.message()}});
  }
  StoreUsage usage() const override { return store_->usage(); }
  std::optional<Clock::time_point> hangs_since() const override { return threads_->hangs_since(); }

 private:
  template <typename R>
  R Run(const std::string& owner, const std::string& key, milliseconds more,
        std::function<R(StateStore*)> call) {
    // Shared with an operation that hangs.
    const auto result = std::make_shared<std::optional<R>>();
    PS_RETURN_IF_ERROR(threads_->Run(
        owner, key, more, [store = store_, call, result] { result->emplace(call(store.get())); }));
    return *std::move(*result);
  }

  const std::shared_ptr<StateStore> store_;
  const StoreDeadline deadline_;
  const std::shared_ptr<HangingThreads> threads_;
};

}  // namespace

std::unique_ptr<StateStore> NewDeadlineStore(std::shared_ptr<StateStore> store,
                                             StoreDeadline deadline) {
  return std::make_unique<DeadlineStore>(std::move(store), deadline);
}

}  // namespace polysketch
