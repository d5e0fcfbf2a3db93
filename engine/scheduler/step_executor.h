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
#include "engine/model/model.h"
#include "engine/request/observer.h"
#include "engine/sampler/sampler.h"
#include "engine/scheduler/sequence.h"

namespace polysketch {

class StepExecutor {
 public:
  struct Item {
    Sequence* sequence = nullptr;
    SequenceState* state = nullptr;
    int64_t tokens = 0;
  };

  static constexpr int64_t kLogitRows = RowQuery::kMostRows;

  // max_step_tokens: most tokens of a batch. draw_threads: that tokens are drawn on where the model
  // has no threads on the host.
  StepExecutor(LanguageModel* model, int max_step_tokens, int draw_threads,
               std::function<void(bool)> hold_readers);

  void Run(std::span<const Item> batch);
  // Where the time of the last Run went.
  const StepParts& parts() const { return parts_; }

 private:
  // A row whose logits are wanted.
  struct Row {
    Sequence* sequence;
    int64_t row_in_segment;
    int64_t hidden_row;
  };

  // Ends the batch with the device's error, if there is one: before a worthless row goes out.
  bool DeviceFailed(std::span<const Item> batch) const;
  void HandOut(std::span<const Row> rows);
  static bool NeedLogSumExp(std::span<const Row> rows);
  // The logits of `rows`, with log_sum_exp_ if a sequence needs it.
  void MakeLogits(std::span<const Row> rows);
  // The same where the model draws: answers, and logits only where there is none.
  void AskModel(std::span<const Row> rows);
  // Null: the logits of row i are there.
  const RowAnswer* AnswerOf(size_t i) const;
  // Hands `rows`, whose logits are there, to their sequences: first all DrawRow, then all OnRow.
  void Sample(std::span<const Row> rows);

  LanguageModel* const model_;
  const std::unique_ptr<ThreadPool> own_pool_;  // null: the model's
  ThreadPool* const pool_;
  const std::function<void(bool)> hold_readers_;
  const int64_t hidden_size_;
  const int64_t vocab_size_;
  AlignedBuffer<float> hidden_;    // [max_step_tokens, hidden_size]
  AlignedBuffer<float> gathered_;  // [kLogitRows, hidden_size]
  AlignedBuffer<float> logits_;    // [kLogitRows, vocab_size]
  std::vector<float> log_sum_exp_;
  // Of a model that draws, for each row of a batch of logits.
  std::vector<int64_t> hidden_rows_;
  std::vector<RowQuery> queries_;
  std::vector<RowAnswer> answers_;
  std::vector<StepSegment> segments_;
  std::vector<Row> rows_;
  std::vector<size_t> first_rows_;       // of each sequence in a batch of logits
  std::vector<SamplerScratch> scratch_;  // by thread
  StepParts parts_;
};

}  // namespace polysketch
