// Runs sequences: assigns slots and memory, composes steps, removes sequences that have ended.
// Policy is elsewhere: WaitQueue orders waiting sequences and BatchBuilder those of a step, both
// by turns (base/turns.h); StepBudget limits the prompt tokens of a step.
//
// Continuous batching: a sequence joins and leaves between any two steps. A step processes one
// token of every decoding sequence, drafts, and chunks of prompts and scores.
//
// Memory: a sequence is charged with what its state takes, before it takes it. States of constant
// size at their admission; KV caches as they grow (scheduler_growth.cc), or with
// KvAdmission::kReserve the longest state of the request at its admission. No completion fails for
// lack of memory half way: where memory is full, a sequence is preempted. Blocks that states share
// count for each of them.
//
// Preemption: a sequence that is idle, of a lower level, or of a client that holds more gives its
// slot to one that needs it (scheduler_admission.cc). It keeps its state, which is counted in
// preempted memory, and continues later. Where that memory is full a state is dropped: its tokens
// are processed again later, which gives the same bits. KvAdmission::kReserve allows neither for
// the sake of memory. An idle sequence whose slot no other one needs keeps it. The stall deadline
// ends a sequence wherever it is.
//
// Used by one thread only (the engine thread). It starts no threads (StatePool starts one at times)
// and never blocks, so tests drive it directly.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/turns.h"
#include "engine/model/language_model.h"
#include "engine/model/state_pool.h"
#include "engine/request/observer.h"
#include "engine/scheduler/batch_builder.h"
#include "engine/scheduler/kv_admission.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/step_budget.h"
#include "engine/scheduler/step_executor.h"
#include "engine/scheduler/wait_queue.h"

namespace polysketch {

struct SchedulerOptions {
  int max_sequences = 16;       // slots
  size_t slot_memory = 0;       // bytes
  size_t preempted_memory = 0;  // bytes
  KvAdmission kv_admission = KvAdmission::kPreempt;
  // Tokens by which the memory of a KV cache grows, and that a new one has beyond those that are
  // known.
  int64_t growth_tokens = 64;
  std::chrono::nanoseconds stall_deadline{0};
  // Maximum time that prompts add to a step with decoding sequences; 0: no limit.
  std::chrono::nanoseconds step_budget{0};
  // Time of waiting after which a request has the next higher level.
  std::chrono::nanoseconds aging = std::chrono::seconds(10);
  // Time of a sequence in its slot after which the first sequence of a client without a slot may
  // have it, and time of a client's prompts without a token after which they go before those of
  // others.
  std::chrono::nanoseconds slice = std::chrono::milliseconds(250);
  // Threads that sample, if the model has no threads on the host.
  int sampling_threads = 1;
  // As in EngineOptions.
  std::function<void(bool)> batch_notifications = [](bool) {};
  // Called when a request gets its first slot.
  std::function<void(const Sequence&)> on_admitted = [](const Sequence&) {};
  // Called before the FinishEvent of a request is pushed, when its slots are free.
  std::function<void(const Sequence&)> on_ending = [](const Sequence&) {};
};

class Scheduler {
 public:
  // Maximum rows of decoding sequences with their drafts: with more rows the time of a step grows
  // with its rows, and drafts save nothing.
  static constexpr int64_t kMaxDraftRows = 32;

  // `context` outlives the scheduler.
  Scheduler(LanguageModel* model, const SequenceContext& context, const SchedulerOptions& options);

  void Add(std::unique_ptr<Sequence> sequence);
  // Ends requests. Unknown ids are ignored.
  void End(std::span<const RequestId> ids, FinishReason reason, const Status& status);
  void End(RequestId id, FinishReason reason, const Status& status) {
    End(std::span(&id, 1), reason, status);
  }
  // Ends requests with errors, unless they have had a slot.
  void EndWaiting(const std::map<RequestId, Status>& ids);
  void EndAll(FinishReason reason, const Status& status);
  // Ends every sequence that another replica can continue, with kMigrated and a snapshot.
  void MigrateAll();

  // Ends sequences whose deadline has passed, admits waiting ones, and runs one step. Returns false
  // if there was nothing to do: call it again when input or room arrives, or at NextDeadline().
  bool Tick();
  // The earliest time at which a deadline ends a sequence; time_point::max() without one.
  Clock::time_point NextDeadline() const;

  EngineStats stats() const;
  // Number of sequences, with a slot or without.
  int size() const { return running() + static_cast<int>(waiting_.list().size()); }
  int running() const { return static_cast<int>(running_.size()); }
  const StatePool& states() const { return states_; }

 private:
  struct Slot {
    std::unique_ptr<Sequence> sequence;
    SlotState own;
    int level = 0;           // at its admission
    Shared<int> claim;       // at its admission
    uint64_t last_turn = 0;  // BatchBuilder::Candidate::last_turn
    Clock::time_point admitted;
    // After its tokens were processed again: when it has gone on for as long as that took.
    Clock::time_point settled = Clock::time_point::min();
    Clock::time_point last_served;
    std::weak_ptr<ForkSource> forked_from;
    bool missing = false;  // at its admission, or after its last step: Sequence::missing

    SequenceState& state() const { return *own.state; }
    // Whether the state is being loaded or stored: the sequence takes part in no step.
    bool copying() const {
      return (own.loader != nullptr && !sequence->ended()) || sequence->storing();
    }
  };
  // The slots that can take part in a step; candidates[i] belongs to slots[i].
  struct Candidates {
    std::vector<Slot*> slots;
    std::vector<BatchBuilder::Candidate> candidates;
  };
  struct StepPlan {
    std::vector<StepExecutor::ScheduledSegment> segments;
    std::vector<Slot*> slots;  // of the segments
    int decode_tokens = 0;
    int prefill_tokens = 0;
    std::vector<StepBudget::Chunk> chunks;  // of prompts
    int64_t folds = 0;                      // number of them that begin with a fold
  };

  // Calls visit for every sequence, with a slot or without.
  void ForEach(const std::function<void(Sequence&)>& visit) const;
  // The time at which the stall deadline ends the sequence; max() while it waits for neither its
  // reader nor its input.
  Clock::time_point StallDeadline(const Sequence& sequence) const;
  void EndDue(Clock::time_point now);
  // Ends all choices of a request of which one choice has failed.
  void FailTogether();
  // Removes the sequences that have ended, and finishes them. Returns whether there was one.
  bool RemoveEnded();
  void Finish(Slot slot);
  // Whether a sequence that has ended waits until its state is saved.
  bool Saving() const;

  // --- slots (scheduler_admission.cc) ---

  // Admits waiting sequences. Returns whether one was admitted.
  bool Admit(Clock::time_point now);
  bool AdmitWhilePossible(Clock::time_point now, bool preempted_only);
  // Fork sources may hold all memory while no sequence runs that could release some, and the next
  // sequence waits for memory. Then a fork of the request that was admitted last fits, because its
  // parent did, and so on back to the first request. Returns a fork that fits, or end().
  WaitQueue::Iterator ForkThatFits(Clock::time_point now);
  // Bytes of slot memory that a waiting sequence needs, including those of its ForkSource.
  size_t BytesNeeded(const Waiting& waiting) const;
  // Whether one more sequence with `bytes` fits after `sequences` that hold `freed` bytes have
  // left.
  bool Fits(size_t bytes, int sequences = 0, size_t freed = 0) const;
  // Finds the sequences that make room for another one.
  class RoomMaker;
  // Preempts sequences until `next` fits. Returns false, and preempts none, if it cannot fit.
  bool MakeRoom(Waiting* next, const Holdings& holdings, Clock::time_point now);
  // A slot and `bytes` of slot memory.
  Holding HoldingOf(size_t bytes) const;
  Holdings FindHoldings() const;
  // Preempts the sequence for `next`; null: for one that grows.
  void Preempt(size_t index, const Waiting* next, Clock::time_point now);
  // Drops the state of `preempted`, which needs room in preempted memory, or that of another
  // sequence.
  void DropOne(Waiting* preempted, const Waiting* next);
  // Assigns a slot to a sequence that fits. Returns false if no state could be allocated.
  bool AssignSlot(WaitQueue::Iterator at, Clock::time_point now);
  // Makes the state of a sequence that starts anew or is a fork. Returns false if no state could be
  // allocated.
  bool StartState(Waiting* waiting, SlotState* own);
  // Queues the forks of a sequence that has processed the tokens that they share.
  void Fork(Slot* slot, Clock::time_point now);

  // --- memory of KV caches (scheduler_growth.cc) ---

  // Bytes of slot memory with which the state of a sequence is admitted.
  size_t BytesToStart(const Sequence& sequence) const;
  // Bytes of preempted memory that the state of the slot would take.
  size_t BytesToKeep(const Slot& slot) const;
  // Gives the sequences that can be in the next step memory for a token. Preempts some where it is
  // full.
  void GrowStates(Clock::time_point now);
  // Does so for one, or preempts one for it. Returns whether to call it again.
  bool GrowOrPreempt(const Sequence* sequence, Clock::time_point now);
  // Reserves memory for a state of `length` tokens. Returns false, and reserves nothing, if less is
  // free.
  bool Grow(Slot* slot, int64_t length);
  // Returns the index in running_ of the first sequence to preempt where one grows; nullopt if none
  // can be.
  std::optional<size_t> GrowthVictim() const;
  // Drops a state from which forks were to start. Returns false if there is none.
  bool DropSource();
  void EndWithoutMemory(Slot* slot, int64_t length);
  // Reserves memory for `tokens` more tokens. Returns for how many there is memory. Where memory is
  // reserved at admission, ends a sequence that lacks some, and returns 0.
  int64_t FitReservation(Slot* slot, int64_t tokens);

  // --- steps (scheduler_steps.cc) ---
  bool Step(Clock::time_point now);
  // copying: the time that copies of states have taken of the step's budget.
  StepPlan PlanStep(Clock::time_point now, std::chrono::nanoseconds copying);
  Candidates FindCandidates(Clock::time_point now);
  // Raises the priority of prompts whose client got no token of a prompt for a slice.
  void RaiseStarved(Candidates* shares, Clock::time_point now) const;
  // Maximum draft tokens of each decoding sequence, before the limit of its state.
  int64_t MaxDrafts() const;
  // Limits a chunk of a prompt to its block: chunks of equal size of at most max_tokens up to the
  // end of the block. So the folds of a step are known before the step, and count against its
  // budget.
  void FitToBlock(const SequenceState& state, int64_t max_tokens,
                  BatchBuilder::Candidate* candidate) const;
  // Divides the tokens of a step. Element i is the number of tokens of candidates[i].
  std::vector<int64_t> ShareTokens(Candidates* shares, std::chrono::nanoseconds copying);
  // Returns the virtual times of the candidates' clients and parts, and sets Candidate::client and
  // Candidate::part to their indices.
  std::vector<int64_t> Times(Candidates* shares);
  // Whether the process may have the memory by which the states of a step grow, which is allocated
  // within the step: `growth` bytes and, added to them, those of `tokens` more tokens of a KV
  // cache. Ends the sequence if not.
  bool MemoryFor(Slot* slot, int64_t tokens, size_t* growth);

  // Continues to load, or to clear, the states that sequences start from, and to save states: for
  // the prefix cache, and of sequences that have ended with a snapshot. Copies all of them if no
  // decoding sequence waits, otherwise for half of a step's budget (at least one part). Returns
  // whether it copied a part.
  bool CopyStates(Clock::time_point now);
  // Copies the next parts of the slot's state.
  void CopyParts(Slot* slot, Clock::time_point now);
  // Saves the next parts of the sequence's state.
  void SaveParts(Sequence* sequence, const SequenceState& state);

  const SequenceContext& context_;
  const SchedulerOptions options_;
  LanguageModel* const model_;
  StatePool states_;
  const bool grows_;  // whether a sequence is charged as its state grows
  Turns turns_;
  StepBudget budget_;
  BatchBuilder batch_builder_;
  StepExecutor executor_;

  WaitQueue waiting_;
  std::vector<Slot> running_;  // in order of admission
  int64_t steps_ = 0;
  int64_t preemptions_ = 0;
  int64_t dropped_states_ = 0;
  int64_t dropped_tokens_ = 0;
};

}  // namespace polysketch
