// A loaded model as the scheduler sees it: immutable weights, states made for it, and a step over a
// packed batch of segments. m = 1 is decoding, m large is prefill, every row wanted is scoring: the
// same call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "engine/checkpoint/model_config.h"
#include "engine/model/batch.h"
#include "kernels/backend.h"

namespace polysketch {

class ThreadPool;

// Abstract so that the scheduler can be tested, and simulated, without a model.
class LanguageModel {
 public:
  virtual ~LanguageModel() = default;

  virtual int vocab_size() const = 0;
  // Floats in a hidden row.
  virtual int hidden_size() const = 0;
  // Most tokens (over all segments) that one Step takes.
  virtual int max_step_tokens() const = 0;
  // Null when there is no memory for it now.
  virtual std::unique_ptr<SequenceState> NewState() = 0;
  // Whether all states should be made before the first request: a device's memory, unlike the
  // host's, is not there to be asked for when it is needed.
  virtual bool states_at_start() const { return false; }
  // Makes the memory beside states that any step of so many sequences needs; where memory is a
  // device's, none is asked for later, nor for the `growing` bytes that states which grow may take
  // together. status() has the error when it is not there.
  virtual void Reserve(int /*sequences*/, size_t /*growing*/) {}
  // Tokens of a block: a state can be cut back to behind the first token of its last block
  // (SequenceState::EarliestTruncation). 0: to any position (KV kinds).
  virtual int64_t block() const = 0;
  // Bytes of a state that has seen `tokens` tokens (constant for recurrent kinds).
  virtual size_t StateBytes(int64_t tokens) const = 0;

  // Runs a batch and advances the states of its segments. Writes the final-norm hidden rows of
  // batch.output_rows() to hidden [output rows, hidden_size]; null where samples(): they stay for
  // Sample alone. A row's bits do not depend on the other segments or on the split.
  virtual void Step(const Batch& batch, float* hidden) = 0;
  // logits [rows, vocab] of hidden rows.
  virtual void Logits(const float* hidden, int64_t rows, float* logits) = 0;
  // Whether Draw is there: where logits are not in the host's memory, so that only tokens have to
  // come back.
  virtual bool samples() const { return false; }
  // results[i] to queries[i] about the logits of hidden row first + i of the last Step. Where the
  // result is kNone or kTooMany, row i of logits [queries, vocab] is filled too; and log_sum_exp
  // [queries], unless it is null.
  virtual void Sample(int64_t /*first*/, std::span<const SampleQuery> /*queries*/,
                      std::span<SampleResult> /*results*/, float* /*logits*/,
                      float* /*log_sum_exp*/) {}
  // Threads of the host that the caller may use between two of the calls above; null: none.
  virtual ThreadPool* pool() { return nullptr; }
  // The first error of the device; from then on results are worthless (Backend::status).
  virtual Status status() const { return Status(); }
  // out[m] = log sum_j exp(logits[m][j]).
  virtual void LogSumExp(const float* logits, int64_t rows, float* out) = 0;
};

struct LoadOptions {
  // Format of the packed matrices; as in the checkpoint (per tensor) when unset.
  std::optional<DataType> weights;
  // As precise as the weights when unset: kF32 for a model whose embedding is packed as float32,
  // kBf16 for the others.
  std::optional<StateFormat> state_format;
  int max_step_tokens = 512;
  // Called with bytes done and total while weights are packed. May be empty.
  std::function<void(int64_t, int64_t)> progress;
};

// The PolySketchFormer of a model folder (docs/model-format.md). Checks every tensor against the
// config.
class PolysketchModel : public LanguageModel {
 public:
  static Result<std::unique_ptr<PolysketchModel>> Load(const std::string& folder, Backend* backend,
                                                       const LoadOptions& options);
  virtual const ModelConfig& config() const = 0;
  virtual const AttentionSpec& attention_spec() const = 0;
  // Bytes of all packed weights.
  virtual int64_t weight_bytes() const = 0;
  virtual int64_t parameters() const = 0;
  // Bytes that a decode step of one sequence reads on average: weights, state, half a block buffer.
  virtual int64_t decode_step_bytes() const = 0;
};

}  // namespace polysketch
