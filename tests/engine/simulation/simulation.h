// The production scheduler in a world of its own: a virtual clock, a model whose steps take virtual
// time and whose allocations may fail, and clients that read slowly, stall, disconnect and come
// back for more. Some are in sessions, whose states come from a store that is slow and fails, and
// go back there; now and then everything is drained to it and goes on from there. Everything
// follows from one seed: a seed that fails does so again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/prefix_cache/prefix_cache.h"
#include "engine/scheduler/scheduler.h"
#include "engine/session/session_table.h"
#include "tests/engine/simulation/simulated_requests.h"
#include "tests/engine/simulation/simulated_store.h"
#include "tests/engine/testing/collected.h"
#include "tests/engine/testing/fake_model.h"
#include "tests/testing/random.h"

namespace polysketch::testing {

class SimulatedModel : public FakeModel {
 public:
  SimulatedModel(Random* random, Clock::time_point* now, bool growing)
      : FakeModel(kStepTokens, growing), random_(random), now_(now) {
    on_copy = [this] { *now_ += kCopyTime; };
  }

  static constexpr int kStepTokens = 48;
  // Of a step: this and a tenth of it for each token, and up to half as much again.
  static constexpr std::chrono::microseconds kStepTime{1000};
  static constexpr std::chrono::microseconds kLongestStep{1000 * (10 + kStepTokens) / 10 * 3 / 2};

  static constexpr std::chrono::microseconds kCopyTime{1500};  // of a part of a state

  std::unique_ptr<SequenceState> NewState() override;
  void Step(const Batch& batch, float* hidden) override;

  double failing_allocations = 0;  // probability

 private:
  Random* const random_;
  Clock::time_point* const now_;
};

class Simulation {
 public:
  Simulation(uint64_t seed, const SimulatedRequests* requests);
  ~Simulation();

  // That many ticks with clients coming, then as many as it takes until the last request has ended.
  // False, with error() saying why, when an invariant broke.
  bool Run(int ticks);
  const std::string& error() const { return error_; }
  // A hash of everything that happened, in order.
  uint64_t trace() const { return trace_; }
  // How often each thing happened: a world in which nothing fails shows nothing.
  struct Happened {
    int64_t requests = 0, reasons[7] = {}, preemptions = 0, preempted = 0, dropped = 0,
            dropped_growing = 0, forks = 0, drafts_held = 0, refused = 0, turns = 0, contended = 0,
            store_failures = 0, spills = 0, resumed = 0, cache_hits = 0;
    void Add(const Happened& other);
  };
  const Happened& happened() const { return happened_; }

 private:
  static constexpr int kMaxPriority = 2;
  struct Client;
  struct Session;
  class Observer;

  // --- simulation_clients.cc: requests on their way, the store's part of it included ---
  void Arrive();
  bool QueueIsFull() const;
  // Hands a request to the scheduler, or it is refused; `start` may be null.
  void Submit(Client* client, std::shared_ptr<const Snapshot> start);
  // On the store thread: a turn gets its session, or a client hears why not.
  void TakeSession(Client* client);
  // Finds out where a session is after a commit whose outcome is unknown.
  Status Settle(Session* session);
  void EndTurn(Session* session);
  Status Prepare(Session* session);
  // What a finish means for the store.
  void OnFinish(Client* client);
  void Stop(Client* client);
  void Resume(Client* client);
  void Commit(Client* client);
  // The request ends without an answer of the engine.
  void Refuse(Client* client, const Status& status);
  // After a session was leased: sessions without a lease leave memory first.
  void CheckSessionMemory();
  void CheckSessions();

  // --- simulation.cc ---
  void OpenSessions();
  void Act(Client* client);
  void Read(Client* client, int64_t most);
  void CheckEvent(Client* client, const Event& event);
  void CheckEnd(const Client& client);
  void CheckCharged(const Batch& batch);
  void CheckBudgets();
  void CheckNobodyStarves();
  void Note(uint64_t value);
  // Keeps the first.
  template <typename... Parts>
  void Fail(const Parts&... parts) {
    if (error_.empty()) error_ = StrCat(parts...);
  }

  Random random_;
  const SimulatedRequests& requests_;
  Clock::time_point now_{std::chrono::hours(1)};
  std::unique_ptr<SimulatedModel> model_;
  std::unique_ptr<Observer> observer_;
  FakeTokenizer tokenizer_;
  SequenceContext context_;
  SchedulerOptions options_;
  int max_queue_ = 0;
  std::unique_ptr<PrefixCache> prefix_cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<SimulatedStore> store_;
  std::unique_ptr<SessionTable> table_;
  SimulatedStoreThread store_thread_{&random_, &now_};
  double drains_ = 0;  // probability in a tick
  size_t largest_snapshot_ = 0;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<std::unique_ptr<Client>> clients_;  // those who leave go back to the ones above
  RequestId next_id_ = 1;
  bool settling_ = false;
  uint64_t trace_ = 0;
  std::string error_;
  Happened happened_;
};

// A client's request.
struct Simulation::Client {
  RequestId id = 0;
  const SimulatedRequest* request = nullptr;
  RequestInfo info;
  size_t capacity = 0;  // of its stream
  std::shared_ptr<EventStream> stream;
  std::shared_ptr<TokenFeed> feed;
  Clock::time_point ready_since;  // since when it has owed nothing
  Clock::time_point next_act;
  std::chrono::microseconds pace{0};  // between two acts
  int64_t bite = 0;                   // events or input tokens in one act
  size_t fed = 0;
  Clock::time_point leaves = Clock::time_point::max();
  bool cancelled = false;
  bool submitted = false;  // the scheduler has it, or had
  Collected got;
  int endings = 0;
  bool over = false;

  Session* session = nullptr;         // whose turn it is
  std::optional<SessionLease> lease;  // from the store on, until it is over
  std::shared_ptr<const Snapshot> end;
  std::string resume_token;
};

// A session of a tenant, as its clients know it.
struct Simulation::Session {
  const SimulatedSession* turns = nullptr;
  std::string tenant;
  std::string id;  // empty: to be made
  size_t turn = 0;
  bool durable = false;
  bool unknown = false;  // whether the turn has ended

  int64_t tokens() const { return turn == 0 ? 0 : (*turns)[turn - 1].session_tokens; }
};

}  // namespace polysketch::testing
