// Decides what runs: admits waiting sequences to slots, composes steps of whatever is running, ends
// what is over.
//
// Continuous batching: a sequence joins at any step and leaves at any step; a step takes one token
// of every decoding sequence and chunks of prompts and scores beside them (batch_builder.h).
// Admission is first come, first served: a slot and memory for the state, then no request can fail
// for want of either.
//
// A sequence whose stream is full is parked: it keeps slot and state and costs nothing until the
// reader catches up, or the stall deadline ends it.
//
// Used by one thread only (the engine thread); knows no threads and sleeps nowhere, so tests drive
// it by hand.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "engine/model/model.h"
#include "engine/scheduler/batch_builder.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/state_pool.h"
#include "engine/scheduler/step_executor.h"

namespace polysketch {

struct SchedulerOptions {
  int max_sequences = 16;
  size_t state_memory = 0;  // bytes for all states
  std::chrono::nanoseconds stall_deadline{0};
  // Called before the FinishEvent of a sequence is pushed: its slot is free then.
  std::function<void(RequestId)> on_ending = [](RequestId) {};
};

class Scheduler {
 public:
  // `context` outlives the scheduler.
  Scheduler(LanguageModel* model, const SequenceContext& context, const SchedulerOptions& options);

  // Puts a sequence at the end of the queue.
  void Add(std::unique_ptr<Sequence> sequence);
  // Ends a waiting or running sequence; does nothing for other ids.
  void End(RequestId id, FinishReason reason, const Status& status);
  void EndAll(FinishReason reason, const Status& status);
  // Ends all that can go on elsewhere, waiting ones too, with kMigrated and a snapshot.
  void MigrateAll();

  // Ends what is due, admits, runs one step. False when there was nothing to do: call again when
  // input or room arrives, or at NextDeadline().
  bool Tick();
  // The earliest time at which something ends by itself; time_point::max() when nothing does.
  Clock::time_point NextDeadline() const;

  int running() const { return static_cast<int>(running_.size()); }
  int waiting() const { return static_cast<int>(waiting_.size()); }
  int parked() const { return parked_; }
  int64_t steps() const { return steps_; }
  // Bytes that the states of running sequences hold now.
  size_t state_bytes() const;
  const StatePool& states() const { return states_; }

 private:
  struct Slot {
    std::unique_ptr<Sequence> sequence;
    std::unique_ptr<SequenceState> state;
    size_t reserved = 0;  // bytes
  };

  // When this running sequence ends for want of a reader or of input; max() when neither is
  // missing.
  Clock::time_point StallDeadline(const Sequence& sequence) const;
  void EndDue(Clock::time_point now);
  void Admit();
  // Reserves memory for the state of a score that grows; ends it when there is none.
  bool GrowReservation(Slot* slot, int64_t tokens);
  bool Step();
  // Takes ended sequences out and tells their streams; false when there were none.
  bool Sweep();
  void Finish(Slot slot);

  const SequenceContext& context_;
  const SchedulerOptions options_;
  StatePool states_;
  BatchBuilder batch_builder_;
  StepExecutor executor_;

  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<Slot> running_;  // in order of admission
  int parked_ = 0;
  int64_t steps_ = 0;
};

}  // namespace polysketch
