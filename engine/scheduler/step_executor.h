// Runs one step of the model over a batch and passes the rows to their sequences. Logits are
// computed for the needed rows only, kLogitRows at a time, so that their memory does not grow with
// a segment (8 MB for a vocabulary of 32000).
//
// Used by the engine thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "engine/model/batch.h"
#include "engine/model/language_model.h"
#include "engine/request/observer.h"
#include "engine/sampler/sampler.h"
#include "engine/scheduler/sequence.h"

namespace polysketch {

class StepExecutor {
 public:
  // The segment of a sequence in a step.
  struct ScheduledSegment {
    Sequence* sequence = nullptr;
    SequenceState* state = nullptr;
    int64_t tokens = 0;
  };

  static constexpr int64_t kLogitRows = SampleQuery::kMaxRows;

  // max_step_tokens: maximum tokens of a batch. sampling_threads: threads that sample, if the model
  // has none on the host.
  StepExecutor(LanguageModel* model, int max_step_tokens, int sampling_threads,
               std::function<void(bool)> batch_notifications);

  void Run(std::span<const ScheduledSegment> batch);
  // Where the time of the last Run went.
  const StepParts& parts() const { return parts_; }

 private:
  // A hidden row of the step, whose logits its sequence needs.
  struct Row {
    Sequence* sequence;
    int64_t row_in_segment;
  };

  // After an error of the device, ends every sequence of the batch and returns true: the results of
  // the step are invalid.
  bool DeviceFailed(std::span<const ScheduledSegment> batch) const;
  // Makes room for the far masses of the batch if a sequence wants them.
  void PrepareFarMass(std::span<const ScheduledSegment> batch);
  void PassFarMass(std::span<const ScheduledSegment> batch);
  // Passes `rows`, which begin at hidden row `first`, to their sequences: their logits, or what the
  // device sampled from them.
  void ProcessRows(int64_t first, std::span<const Row> rows);
  static bool NeedLogSumExp(std::span<const Row> rows);
  void ComputeLogits(int64_t first, std::span<const Row> rows);
  // Samples `rows` on the device. Copies logits to the host only for rows without a result.
  void SampleOnDevice(int64_t first, std::span<const Row> rows);
  // The result for row i; null if its logits were computed instead.
  const SampleResult* ResultOf(size_t i) const;
  // Calls SampleRow for all `rows`, then OnRow for all.
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
  // For each row of a batch of logits, if the model samples rows; else empty.
  std::vector<SampleQuery> queries_;
  std::vector<SampleResult> results_;
  const std::vector<int> far_heads_;  // of each layer
  std::vector<float> far_mass_;       // as Batch::far_mass
  Batch batch_;
  std::vector<Row> rows_;
  std::vector<size_t> first_rows_;       // first row of each sequence in a batch of logits
  std::vector<SamplerScratch> scratch_;  // by thread
  StepParts parts_;
};

}  // namespace polysketch
