// LanguageModel: the interface of a loaded model to the scheduler. It has immutable weights, makes
// states, and runs one step over a packed batch of segments. Decoding (segments of one token),
// prefill (long segments) and scoring (every row is an output) are the same call.
//
// Used by one thread at a time. Abstract, so that the scheduler is tested and simulated without a
// model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/model/batch.h"
#include "kernels/backend.h"

namespace polysketch {

class ThreadPool;

class LanguageModel {
 public:
  virtual ~LanguageModel() = default;

  virtual int vocab_size() const = 0;
  // Floats in a hidden row.
  virtual int hidden_size() const = 0;
  // Maximum tokens of one Step, over all segments.
  virtual int max_step_tokens() const = 0;

  // Runs a batch and advances the states of its segments. Writes the final-norm hidden rows of
  // batch.output_rows() to hidden [output rows, hidden_size]; null with samples_rows(): then the
  // rows stay in the backend's memory for SampleRows. The bits of a row depend neither on the other
  // segments nor on the split (docs/numerics.md).
  virtual void Step(const Batch& batch, float* hidden) = 0;
  // logits [rows, vocab_size] of hidden rows [rows, hidden_size].
  virtual void Logits(const float* hidden, int64_t rows, float* logits) = 0;
  // out[m] = log sum_j exp(logits[m][j]).
  virtual void LogSumExp(const float* logits, int64_t rows, float* out) = 0;
  // Only with samples_rows(). Writes to results[i] the result of queries[i] on the logits of hidden
  // row first + i of the last Step. If results[i] is kNone or kTooMany, also writes row i of logits
  // [queries, vocab_size]. Writes log_sum_exp [queries] unless it is null.
  virtual void SampleRows(int64_t /*first*/, std::span<const SampleQuery> /*queries*/,
                          std::span<SampleResult> /*results*/, float* /*logits*/,
                          float* /*log_sum_exp*/) {}

  // Heads of queries of each layer, 0 of one without a far part. Empty if Step writes no far
  // masses.
  virtual std::vector<int> FarHeads() const { return {}; }

  // --- as in Backend, for this model ---

  virtual std::unique_ptr<SequenceState> NewState() = 0;
  // Whether NewState may run on any thread, beside a step.
  virtual bool makes_states_beside_steps() const { return false; }
  // Bytes of a state of `tokens` tokens (constant for recurrent kinds).
  virtual size_t StateBytes(int64_t tokens) const = 0;
  // Keys of KV caches that the token at `position` reads, a window's at most, on average over all
  // layers. What they cost a token grows with their number; what it costs besides does not depend
  // on the position.
  virtual double KeysRead(int64_t /*position*/) const { return 0; }
  // Allocates the device memory that any step of at most `sequences` segments needs besides states
  // and, for KV kinds, `growing` bytes for all KV caches together. Does nothing with host_memory().
  // status() reports an allocation that fails.
  virtual void Reserve(int /*sequences*/, size_t /*growing*/) {}
  virtual bool host_memory() const { return true; }
  virtual bool samples_rows() const { return false; }
  virtual ThreadPool* pool() { return nullptr; }
  virtual Status status() const { return Status(); }
};

}  // namespace polysketch
