// A slow and unreliable place for states, in virtual time.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/request/request.h"
#include "engine/store/state_store.h"
#include "tests/testing/random.h"

namespace polysketch::testing {

// A store in memory. An operation may fail before it does anything, or after it, when only the
// answer is lost.
class SimulatedStore : public StateStore {
 public:
  explicit SimulatedStore(Random* random) : random_(random) {}

  std::string_view kind() const override { return "simulated"; }
  Result<uint64_t> Put(const std::string& owner, const std::string& key, std::string bytes,
                       std::chrono::milliseconds ttl) override;
  Result<Entry> Get(const std::string& owner, const std::string& key) override;
  Result<StoredInfo> Stat(const std::string& owner, const std::string& key) override;
  Status Delete(const std::string& owner, const std::string& key) override;
  Status Touch(const std::string& owner, const std::string& key,
               std::chrono::milliseconds ttl) override;
  Result<std::vector<StoredInfo>> List(const std::string& owner,
                                       const std::string& prefix) override;

  double failing = 0;    // probability of one of the two ways
  int64_t failures = 0;  // so far

 private:
  struct Value {
    uint64_t revision = 0;
    std::string bytes;
    StoredInfo Info(const std::string& key) const {
      return {key, revision, std::ssize(bytes), {}, bytes.substr(0, kStoredHeadBytes)};
    }
  };
  bool Fails();
  const Value* Find(const std::string& owner, const std::string& key) const;

  Random* const random_;
  uint64_t revisions_ = 0;
  std::map<std::pair<std::string, std::string>, Value> values_;
};

// The server's store thread: jobs one after the other, each over when its time has passed.
class SimulatedStoreThread {
 public:
  SimulatedStoreThread(Random* random, Clock::time_point* now) : random_(random), now_(now) {}

  // What it does happens when it is over.
  void Post(std::function<void()> job);
  // Runs what is over by now.
  void Run();
  bool idle() const { return jobs_.empty(); }

  std::chrono::microseconds slowest{100};  // of a job; one in ten takes ten times as long

 private:
  struct Job {
    std::chrono::microseconds takes;
    std::function<void()> run;
  };

  Random* const random_;
  Clock::time_point* const now_;
  Clock::time_point free_since_;  // the job before the first was over
  std::deque<Job> jobs_;
};

}  // namespace polysketch::testing
