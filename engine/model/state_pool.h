// The states of sequences and the limits of their memory: one for running sequences (slot memory),
// another for preempted sequences. Memory is reserved before a state takes it: the constant size of
// a recurrent kind before the first token, that of a KV kind by its tokens
// (engine/scheduler/scheduler.h).
//
// The first touch of a state's memory can take longer than a step (measured: 3 to 130 ms for the 47
// MB of a model of 110 M parameters). So the pool keeps one state more than sequences have needed
// at once: when the last free one is acquired, a thread of the lowest priority makes and clears the
// next. Where sequences start at once, the states of the others are not cleared yet
// (SequenceState::cleared), nor are those of sequences that have ended: their next user clears them
// in parts.
//
// Used by one thread only; BytesFor, TokensThatFit and kv_kind may be called by any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/model/language_model.h"

namespace polysketch {

// A thread that makes one state at a time. It starts with the object: in a busy process the machine
// may give no thread.
class StateMaker {
 public:
  explicit StateMaker(LanguageModel* model);
  ~StateMaker();
  StateMaker(const StateMaker&) = delete;
  StateMaker& operator=(const StateMaker&) = delete;

  // Begins to make a state. Not called before the last one is taken.
  void Make();
  // Whether a state is made that is not taken.
  bool busy() const { return busy_; }
  // Returns the state, or null if no memory could be allocated; unset while it is being made. Waits
  // for it if `wait`.
  std::optional<std::unique_ptr<SequenceState>> Take(bool wait);

 private:
  void Loop();

  LanguageModel* const model_;
  bool busy_ = false;  // of the thread that calls Make and Take
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  bool wanted_ = false;
  bool stop_ = false;
  std::optional<std::unique_ptr<SequenceState>> made_;
  std::thread thread_;  // last: it uses the other members
};

class StatePool {
 public:
  // Limits in bytes.
  StatePool(LanguageModel* model, size_t limit, size_t preempted_limit);

  // Allocates states before the first request; none for KV kinds. In a device's memory: all that
  // the two limits allow, so that no allocation can fail later. In host memory: one.
  void Fill();
  // Number of allocated states that no sequence uses.
  size_t free() const { return free_.size(); }

  // Whether a state grows with its tokens (a KV cache).
  bool kv_kind() const { return kv_kind_; }
  size_t BytesFor(int64_t tokens) const { return model_->StateBytes(tokens); }
  // Maximum number of tokens of a state of at most `bytes`: 0 if no state fits, INT64_MAX / 2 if
  // the size does not depend on the tokens.
  int64_t TokensThatFit(size_t bytes) const;

  size_t limit() const { return limit_; }
  size_t reserved() const { return reserved_; }
  size_t preempted_limit() const { return preempted_limit_; }
  size_t preempted() const { return preempted_; }
  // Reserves `bytes` of the limit. Returns false, and reserves nothing, when less is free.
  bool Reserve(size_t bytes);
  void Unreserve(size_t bytes);
  // Moves a reservation to the preempted limit. Returns false, and moves nothing, when less is free
  // there.
  bool MoveToPreempted(size_t bytes);
  void ReleasePreempted(size_t bytes);

  // Returns an empty state, perhaps one that is not cleared; null if no memory can be allocated.
  // States of constant size are reused.
  std::unique_ptr<SequenceState> Acquire();
  void Release(std::unique_ptr<SequenceState> state);

 private:
  // States that both limits allow.
  size_t MaxStates() const { return limit_ / BytesFor(1) + preempted_limit_ / BytesFor(1); }
  // Begins to make the next state, if none is free and the limits allow one more.
  void MakeNext();
  // Makes the next state free, if it has been made. Waits for it if `wait`.
  void TakeNext(bool wait);

  LanguageModel* const model_;
  const size_t limit_;
  const size_t preempted_limit_;
  const bool kv_kind_;
  size_t reserved_ = 0;
  size_t preempted_ = 0;
  size_t states_ = 0;  // of constant size: in use, free and being made
  std::vector<std::unique_ptr<SequenceState>> free_;
  std::unique_ptr<StateMaker> maker_;  // null before Fill, and where steps make all states
};

}  // namespace polysketch
