// Runs one step of the model over a batch and hands the rows to their sequences. Logits are
// computed for the rows that are wanted only, in batches, so that their memory does not grow with a
// segment (a vocabulary of 32000: 8 MB).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "engine/model/batch.h"
#include "engine/model/model.h"
#include "engine/request/observer.h"
#include "engine/sampler/sampler.h"
#include "engine/scheduler/sequence.h"

namespace polysketch {

class StepExecutor {
 public:
  // The segment that a sequence gets in a step.
  struct ScheduledSegment {
    Sequence* sequence = nullptr;
    SequenceState* state = nullptr;
    int64_t tokens = 0;
  };

  static constexpr int64_t kLogitRows = SampleQuery::kMaxRows;

  // max_step_tokens: most tokens of a batch. sampling_threads: that tokens are drawn on where the model
  // has no threads on the host.
  StepExecutor(LanguageModel* model, int max_step_tokens, int sampling_threads,
               std::function<void(bool)> batch_notifications);

  void Run(std::span<const ScheduledSegment> batch);
  // Where the time of the last Run went.
  const StepParts& parts() const { return parts_; }

 private:
  // A hidden row of the step, whose logits its sequence wants.
  struct Row {
    Sequence* sequence;
    int64_t row_in_segment;
  };

  // Ends the batch with the device's error, if there is one: before a worthless row goes out.
  bool DeviceFailed(std::span<const ScheduledSegment> batch) const;
  // The rows from hidden row `first` on: their logits, or what the device samples from them, to
  // their sequences.
  void ProcessRows(int64_t first, std::span<const Row> rows);
  static bool NeedLogSumExp(std::span<const Row> rows);
  // The logits of `rows`, with log_sum_exp_ if a sequence needs it.
  void ComputeLogits(int64_t first, std::span<const Row> rows);
  // The same where the model samples: results, and logits only where there is none.
  void SampleOnDevice(int64_t first, std::span<const Row> rows);
  // Null: the logits of row i are there.
  const SampleResult* ResultOf(size_t i) const;
  // Hands `rows`, whose logits or results are there, to their sequences: first all SampleRow, then
  // all OnRow.
  void Sample(std::span<const Row> rows);

  LanguageModel* const model_;
  const std::unique_ptr<ThreadPool> own_pool_;  // null: the model's
  ThreadPool* const pool_;
  const std::function<void(bool)> batch_notifications_;
  const int64_t hidden_size_;
  const int64_t vocab_size_;
  AlignedBuffer<float> hidden_;  // [max_step_tokens, hidden_size]
  AlignedBuffer<float> logits_;  // [kLogitRows, vocab_size]
  std::vector<float> log_sum_exp_;
  // Of a model that samples, for each row of a batch of logits.
  std::vector<SampleQuery> queries_;
  std::vector<SampleResult> results_;
  Batch batch_;
  std::vector<Row> rows_;
  std::vector<size_t> first_rows_;       // of each sequence in a batch of logits
  std::vector<SamplerScratch> scratch_;  // by thread
  StepParts parts_;
};

}  // namespace polysketch
