// Runs sequences: gives them slots and memory, composes steps of whatever can run, ends what is
// over. Who comes first is decided elsewhere: for slots by WaitQueue, within a step by
// BatchBuilder, both with TenantShares; how much of a prompt a step takes by StepBudget.
//
// Continuous batching: a sequence joins at any step and leaves at any step; a step takes one token
// of every decoding sequence, drafts, and chunks of prompts and scores beside them. A sequence that
// has a slot has the memory for all that it may become, so none fails for want of it half way.
//
// Parking: a sequence that could use no step now (its stream is full, or its input is late), or one
// of a lower level, gives its slot up when another one needs it. Its state moves to the parked
// ones and back; nothing is computed again. While nobody needs the slot it keeps it and costs
// nothing. The stall deadline ends it wherever it is.
//
// Used by one thread only (the engine thread); knows no threads and sleeps nowhere, so tests drive
// it by hand.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/model/model.h"
#include "engine/model/state_pool.h"
#include "engine/scheduler/batch_builder.h"
#include "engine/scheduler/fork_source.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/step_budget.h"
#include "engine/scheduler/step_executor.h"
#include "engine/scheduler/tenant_shares.h"
#include "engine/scheduler/wait_queue.h"

namespace polysketch {

struct SchedulerOptions {
  int max_sequences = 16;
  size_t slot_memory = 0;       // bytes for the states of sequences that have a slot
  size_t preempted_memory = 0;  // bytes for those that gave it up
  std::chrono::nanoseconds stall_deadline{0};
  // What a prompt may add to a step beside decoding sequences; 0: no bound.
  std::chrono::nanoseconds step_budget{0};
  // A request that waits for so long counts as one of the next higher priority.
  std::chrono::nanoseconds aging = std::chrono::seconds(10);
  // Threads that tokens are drawn on, where the model has none on the host.
  int sampling_threads = 1;
  // As EngineOptions has it.
  std::function<void(bool)> batch_notifications = [](bool) {};
  // Called before a request's FinishEvent is pushed: its slots are free then.
  std::function<void(const Sequence&)> on_ending = [](const Sequence&) {};
};

class Scheduler {
 public:
  // Rows that decoding sequences and their drafts may fill together: beyond, a step's work grows
  // with its rows and drafts save nothing.
  static constexpr int64_t kMaxDraftRows = 32;

  // `context` outlives the scheduler.
  Scheduler(LanguageModel* model, const SequenceContext& context, const SchedulerOptions& options);

  // Puts a sequence in the queue.
  void Add(std::unique_ptr<Sequence> sequence);
  // Ends a waiting or running request; does nothing for other ids.
  void End(RequestId id, FinishReason reason, const Status& status);
  void EndAll(FinishReason reason, const Status& status);
  // Ends all that can go on elsewhere, waiting ones too, with kMigrated and a snapshot.
  void MigrateAll();

  // Ends what is due, admits, runs one step. False when there was nothing to do: call again when
  // input or room arrives, or at NextDeadline().
  bool Tick();
  // The earliest time at which something ends by itself; time_point::max() when nothing does.
  Clock::time_point NextDeadline() const;

  struct Counts {
    int running = 0;             // have a slot
    int waiting = 0;             // have had none yet
    int idle = 0;                // of these, wait for their reader or input
    int preempted = 0;           // gave their slot to others
    int able = 0;                // of these, could go on now
    int64_t waiting_tokens = 0;  // of the prompts of those that wait
    size_t state_bytes = 0;      // of those that have a slot
    size_t preempted_bytes = 0;  // of those that gave theirs to others
  };
  Counts counts() const;
  // Sequences, with a slot or without.
  int size() const { return running() + static_cast<int>(waiting_.list().size()); }
  int running() const { return static_cast<int>(running_.size()); }
  int64_t steps() const { return steps_; }
  // How often a sequence gave up its slot.
  int64_t preemptions() const { return preemptions_; }
  const StatePool& states() const { return states_; }

 private:
  struct Slot {
    std::unique_ptr<Sequence> sequence;
    std::unique_ptr<SequenceState> state;
    size_t reserved = 0;       // bytes
    size_t fork_reserved = 0;  // bytes of the ForkSource to come
    int level = 0;             // when it was admitted
    uint64_t last_turn = 0;    // BatchBuilder::Candidate::last_turn
    Clock::time_point last_served;
  };
  // What a step takes from a slot.
  struct Share {
    Slot* slot;
    BatchBuilder::Candidate candidate;
  };

  // Every sequence, with a slot or without.
  void ForEach(const std::function<void(Sequence&)>& visit) const;
  // When this sequence ends for want of a reader or of input; max() when neither is missing.
  Clock::time_point StallDeadline(const Sequence& sequence) const;
  void EndDue(Clock::time_point now);

  // --- scheduler_admission.cc ---
  // Whether there was one to admit.
  bool Admit(Clock::time_point now);
  bool AdmitWhilePossible(Clock::time_point now, bool preempted_only);
  // When the next one lacks memory and nothing runs that could give some back: sources of forks
  // hold it. A fork of the request that was admitted last has room (its parent had it), and so on
  // back to the first; without this, forks of larger requests would wait in front of it for ever.
  WaitQueue::Iterator ForkThatFits(Clock::time_point now);
  // Memory that a waiting sequence needs for its slot, that of its forks' source included.
  size_t BytesNeeded(const Waiting& waiting) const;
  bool HasRoom(int slots, size_t bytes) const;
  // Parks what must give way to `next`; false (and nothing is parked) when that does not make room
  // for its `bytes`.
  bool MakeRoom(Waiting* next, size_t bytes, Clock::time_point now);
  void Preempt(size_t index, Clock::time_point now);
  // Gives a slot, for which there is room; false when there was no memory after all.
  bool Place(WaitQueue::Iterator at, Clock::time_point now);
  // Queues the forks of a sequence that has come so far.
  void Fork(Slot* slot, Clock::time_point now);

  // --- steps ---
  bool Step(Clock::time_point now);
  bool AnyStores() const;
  // Goes on storing the states that sequences wait for: all there is to do, or while somebody waits
  // for tokens, half of a step's budget (one part at least; `foreseen`: the step left that half).
  // Whether it did any of it.
  bool StoreStates(bool foreseen);
  std::vector<Share> Candidates(Clock::time_point now);
  // Drafts that each decoding sequence may have, before what its block leaves.
  int64_t MaxDrafts() const;
  // The next token of this state folds a block first.
  bool BeginsWithFold(const SequenceState& state) const;
  // Where a step has a budget, a chunk of a prompt ends with its block, in chunks of equal size up
  // to there: so a step's folds are known before, and cost their part of the budget. A step behind
  // which a state is stored has a few tokens of a prompt and no more: the copy takes the rest.
  void FitToBlock(const Slot& slot, int64_t most, BatchBuilder::Candidate* candidate) const;
  // Shares the step's tokens out; tokens[i] for shares[i].
  std::vector<int64_t> ShareTokens(std::vector<Share>* shares);
  // Reserves memory for the state of a score that grows; ends it when there is none.
  bool GrowReservation(Slot* slot, int64_t tokens);

  // A choice that failed ends its request: the other choices fail with it.
  void FailTogether();
  // Takes ended sequences out and tells their streams; false when there were none.
  bool Sweep();
  void Finish(Slot slot);

  const SequenceContext& context_;
  const SchedulerOptions options_;
  LanguageModel* const model_;
  StatePool states_;
  TenantShares tenants_;
  StepBudget budget_;
  BatchBuilder batch_builder_;
  StepExecutor executor_;

  WaitQueue waiting_;
  std::vector<Slot> running_;  // in order of admission
  int64_t steps_ = 0;
  int64_t preemptions_ = 0;
};

}  // namespace polysketch
