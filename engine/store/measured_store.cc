#include "engine/store/measured_store.h"

#include <utility>

namespace polysketch {
namespace {

using std::chrono::steady_clock;

class MeasuredStore final : public StateStore {
 public:
  MeasuredStore(std::unique_ptr<StateStore> store, EngineObserver* observer)
      : store_(std::move(store)), observer_(observer) {}

  std::string_view kind() const override { return store_->kind(); }

  Result<uint64_t> Put(const std::string& owner, const std::string& key, std::string bytes,
                       std::chrono::milliseconds ttl) override {
    return Measured(StoreOperation::kPut,
                    [&] { return store_->Put(owner, key, std::move(bytes), ttl); });
  }
  Result<Entry> Get(const std::string& owner, const std::string& key) override {
    return Measured(StoreOperation::kGet, [&] { return store_->Get(owner, key); });
  }
  Result<StoredInfo> Stat(const std::string& owner, const std::string& key) override {
    return Measured(StoreOperation::kOther, [&] { return store_->Stat(owner, key); });
  }
  Status Delete(const std::string& owner, const std::string& key) override {
    return Measured(StoreOperation::kOther, [&] { return store_->Delete(owner, key); });
  }
  Status Touch(const std::string& owner, const std::string& key,
               std::chrono::milliseconds ttl) override {
    return Measured(StoreOperation::kOther, [&] { return store_->Touch(owner, key, ttl); });
  }
  Result<StoredInfo> Renew(const std::string& owner, const std::string& key,
                           std::chrono::milliseconds ttl) override {
    return Measured(StoreOperation::kOther, [&] { return store_->Renew(owner, key, ttl); });
  }
  Result<std::vector<StoredInfo>> List(const std::string& owner,
                                       const std::string& prefix) override {
    return Measured(StoreOperation::kOther, [&] { return store_->List(owner, prefix); });
  }
  Result<int64_t> CountAtMost(const std::string& owner, const std::string& prefix) override {
    return Measured(StoreOperation::kOther, [&] { return store_->CountAtMost(owner, prefix); });
  }
  void Expire() override { store_->Expire(); }
  StoreUsage usage() const override { return store_->usage(); }
  std::optional<steady_clock::time_point> hangs_since() const override {
    return store_->hangs_since();
  }

 private:
  template <typename Operation>
  auto Measured(StoreOperation operation, const Operation& run) -> decltype(run()) {
    const steady_clock::time_point start = steady_clock::now();
    auto result = run();
    observer_->OnStore(operation, steady_clock::now() - start);
    return result;
  }

  const std::unique_ptr<StateStore> store_;
  EngineObserver* const observer_;
};

}  // namespace

std::unique_ptr<StateStore> NewMeasuredStore(std::unique_ptr<StateStore> store,
                                             EngineObserver* observer) {
  return std::make_unique<MeasuredStore>(std::move(store), observer);
}

}  // namespace polysketch
