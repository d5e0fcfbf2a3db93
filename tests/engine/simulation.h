// The production scheduler in a world of its own: a virtual clock, a model whose steps take virtual
// time and whose allocations may fail, and clients that read slowly, stall, disconnect and come
// back for more. Everything follows from one seed: a seed that fails does so again.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/scheduler/scheduler.h"
#include "tests/engine/collected.h"
#include "tests/engine/fake_model.h"
#include "tests/testing/random.h"

namespace polysketch::testing {

// A request that clients may send, and what it gives alone.
struct SimulatedRequest {
  GenerateParams params;
  std::vector<int32_t> tokens;  // the prompt, or the text of a score
  bool score = false;
  Collected alone;
};

// The same ones in every simulation.
std::vector<SimulatedRequest> SimulatedRequests(int count);

class SimulatedModel : public FakeModel {
 public:
  SimulatedModel(Random* random, Clock::time_point* now, bool growing)
      : FakeModel(kStepTokens, growing), random_(random), now_(now) {}

  static constexpr int kStepTokens = 48;
  // Of a step: this and a tenth of it for each token, and up to half as much again.
  static constexpr std::chrono::microseconds kStepTime{1000};
  static constexpr std::chrono::microseconds kLongestStep{1000 * (10 + kStepTokens) / 10 * 3 / 2};

  std::unique_ptr<SequenceState> NewState() override;
  void Step(std::span<const StepSegment> segments, float* hidden) override;

  double failing_allocations = 0;  // probability

 private:
  Random* const random_;
  Clock::time_point* const now_;
};

class Simulation {
 public:
  Simulation(uint64_t seed, const std::vector<SimulatedRequest>* requests);
  ~Simulation();

  // That many ticks with clients coming, then as many as it takes until the last request has ended.
  // False, with error() saying why, when an invariant broke.
  bool Run(int ticks);
  const std::string& error() const { return error_; }
  // A hash of everything that happened, in order.
  uint64_t trace() const { return trace_; }
  // How often each thing happened: a world in which nothing fails shows nothing.
  struct Happened {
    int64_t requests = 0, reasons[6] = {}, parkings = 0, preempted = 0, forks = 0, drafts_held = 0,
            refused = 0;
    void Add(const Happened& other);
  };
  const Happened& happened() const { return happened_; }

 private:
  struct Client;
  class Observer;

  void Submit();
  void Act(Client* client);
  void Read(Client* client, int64_t most);
  void CheckEvent(Client* client, const Event& event);
  void CheckEnd(const Client& client);
  void CheckBudgets();
  void CheckNobodyStarves();
  void Note(uint64_t value);
  // Keeps the first.
  template <typename... Parts>
  void Fail(const Parts&... parts) {
    if (error_.empty()) error_ = StrCat(parts...);
  }

  Random random_;
  const std::vector<SimulatedRequest>& requests_;
  Clock::time_point now_{std::chrono::hours(1)};
  std::unique_ptr<SimulatedModel> model_;
  std::unique_ptr<Observer> observer_;
  FakeTokenizer tokenizer_;
  SequenceContext context_;
  SchedulerOptions options_;
  int max_queue_ = 0;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Client>> clients_;
  RequestId next_id_ = 1;
  bool settling_ = false;
  uint64_t trace_ = 0;
  std::string error_;
  Happened happened_;
};

}  // namespace polysketch::testing
