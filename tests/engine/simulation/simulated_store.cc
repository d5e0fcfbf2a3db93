#include "tests/engine/simulation/simulated_store.h"

#include <algorithm>

namespace polysketch::testing {
namespace {

Status NoResult() { return Unavailable("the store does not answer"); }
Status Missing(const std::string& key) { return NotFound("there is no ", key); }

}  // namespace

bool SimulatedStore::Fails() {
  if (failing == 0 || random_->Uniform() >= failing / 2) return false;
  ++failures;
  return true;
}

const SimulatedStore::Value* SimulatedStore::Find(const std::string& owner,
                                                  const std::string& key) const {
  const auto found = values_.find({owner, key});
  return found == values_.end() ? nullptr : &found->second;
}

Result<uint64_t> SimulatedStore::Put(const std::string& owner, const std::string& key,
                                     std::string bytes, std::chrono::milliseconds) {
  if (Fails()) return NoResult();
  values_[{owner, key}] = {++revisions_, std::string(bytes)};
  if (Fails()) return OutcomeUnknown(NoResult());
  return revisions_;
}

Result<StateStore::Entry> SimulatedStore::Get(const std::string& owner, const std::string& key) {
  PS_ASSIGN_OR_RETURN(StoredInfo info, Stat(owner, key));
  return Entry{std::move(info), CopyOf(Find(owner, key)->bytes)};
}

Result<StoredInfo> SimulatedStore::Stat(const std::string& owner, const std::string& key) {
  if (Fails()) return NoResult();
  const Value* value = Find(owner, key);
  if (value == nullptr) return Missing(key);
  return value->Info(key);
}

Status SimulatedStore::Delete(const std::string& owner, const std::string& key) {
  if (Fails()) return NoResult();
  const bool found = values_.erase({owner, key}) > 0;
  if (Fails()) return OutcomeUnknown(NoResult());
  return found ? Status() : Missing(key);
}

Status SimulatedStore::Touch(const std::string& owner, const std::string& key,
                             std::chrono::milliseconds) {
  return Stat(owner, key).status();
}

Result<std::vector<StoredInfo>> SimulatedStore::List(const std::string& owner,
                                                     const std::string& prefix) {
  if (Fails()) return NoResult();
  std::vector<StoredInfo> infos;
  for (const auto& [name, value] : values_) {
    if (name.first != owner || !name.second.starts_with(prefix)) continue;
    infos.push_back(value.Info(name.second));
  }
  return infos;
}

void SimulatedStoreThread::Post(std::function<void()> job) {
  if (jobs_.empty()) free_since_ = *now_;
  const int64_t most = slowest.count() * (random_->Uniform() < 0.1 ? 10 : 1);
  jobs_.push_back({std::chrono::microseconds(random_->Int(0, most)), std::move(job)});
}

void SimulatedStoreThread::Run() {
  while (!jobs_.empty() && free_since_ + jobs_.front().takes <= *now_) {
    free_since_ += jobs_.front().takes;
    const std::function<void()> run = std::move(jobs_.front().run);
    jobs_.pop_front();
    run();
  }
}

}  // namespace polysketch::testing
