#include "engine/scheduler/step_executor.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace polysketch {

StepExecutor::StepExecutor(LanguageModel* model, int max_step_tokens, int sampling_threads,
                           std::function<void(bool)> batch_notifications)
    : model_(model),
      own_pool_(model->pool() == nullptr ? std::make_unique<ThreadPool>(sampling_threads)
                                         : nullptr),
      pool_(own_pool_ == nullptr ? model->pool() : own_pool_.get()),
      batch_notifications_(std::move(batch_notifications)),
      hidden_size_(model->hidden_size()),
      vocab_size_(model->vocab_size()),
      hidden_(static_cast<size_t>(max_step_tokens) * static_cast<size_t>(hidden_size_)),
      logits_(static_cast<size_t>(kLogitRows * vocab_size_)),
      log_sum_exp_(kLogitRows),
      queries_(model->samples_rows() ? kLogitRows : 0),
      results_(queries_.size()),
      far_heads_(model->FarHeads()),
      scratch_(static_cast<size_t>(pool_->threads())) {}

void StepExecutor::Run(std::span<const ScheduledSegment> batch) {
  batch_.Clear();
  rows_.clear();
  for (const auto& [sequence, state, tokens] : batch) {
    const OutputRows needed = sequence->OutputRowsOf(tokens);
    batch_.Add(state, sequence->NextTokens(tokens), needed);
    sequence->OnStepBegins(tokens);
    if (needed == OutputRows::kNone) continue;
    sequence->PrepareRows(tokens);
    for (int64_t i = needed == OutputRows::kAll ? 0 : tokens - 1; i < tokens; ++i) {
      rows_.push_back({sequence, i});
    }
  }
  PrepareFarMass(batch);
  PS_CHECK(rows_.size() * static_cast<size_t>(hidden_size_) <= hidden_.size());

  const Clock::time_point start = Clock::now();
  model_->Step(batch_, model_->samples_rows() ? nullptr : hidden_.data());
  parts_ = {.layers = Clock::now() - start};
  if (DeviceFailed(batch)) return;
  PassFarMass(batch);
  const auto count = std::ssize(rows_);
  for (int64_t first = 0; first < count; first += kLogitRows) {
    ProcessRows(first, std::span(rows_).subspan(first, std::min(kLogitRows, count - first)));
    if (DeviceFailed(batch)) return;
  }
  for (const ScheduledSegment& segment : batch) {
    segment.sequence->OnStepEnds();
    const int64_t accepted = segment.sequence->OnSegment(segment.tokens);
    PS_CHECK(accepted >= 1 && accepted <= segment.tokens);
    if (accepted < segment.tokens)
      segment.state->Truncate(segment.state->position() - segment.tokens + accepted);
    segment.sequence->OnState(*segment.state);
  }
}

void StepExecutor::PrepareFarMass(std::span<const ScheduledSegment> batch) {
  const auto wants = [](const ScheduledSegment& s) { return s.sequence->wants_far_mass(); };
  if (std::none_of(batch.begin(), batch.end(), wants)) return;
  const int heads = std::accumulate(far_heads_.begin(), far_heads_.end(), 0);
  far_mass_.resize(batch_.tokens().size() * static_cast<size_t>(heads));
  batch_.set_far_mass(far_mass_.data());
}

void StepExecutor::PassFarMass(std::span<const ScheduledSegment> batch) {
  if (batch_.far_mass() == nullptr) return;
  std::span<const float> rest = far_mass_;
  for (size_t layer = 0; layer < far_heads_.size(); ++layer) {
    const auto heads = static_cast<size_t>(far_heads_[layer]);
    for (const ScheduledSegment& segment : batch) {
      const size_t size = static_cast<size_t>(segment.tokens) * heads;
      if (size > 0 && segment.sequence->wants_far_mass())
        segment.sequence->OnFarMass(static_cast<int>(layer), rest.first(size));
      rest = rest.subspan(size);
    }
  }
}

bool StepExecutor::DeviceFailed(std::span<const ScheduledSegment> batch) const {
  const Status status = model_->status();
  if (status.ok()) return false;
  for (const ScheduledSegment& segment : batch) segment.sequence->End(FinishReason::kError, status);
  return true;
}

void StepExecutor::ProcessRows(int64_t first, std::span<const Row> rows) {
  const Clock::time_point start = Clock::now();
  model_->samples_rows() ? SampleOnDevice(first, rows) : ComputeLogits(first, rows);
  if (!model_->status().ok()) return;  // Run ends the sequences
  const Clock::time_point sampling = Clock::now();
  parts_.logits += sampling - start;
  Sample(rows);
  parts_.sampling += Clock::now() - sampling;
}

bool StepExecutor::NeedLogSumExp(std::span<const Row> rows) {
  return std::any_of(rows.begin(), rows.end(),
                     [](const Row& row) { return row.sequence->needs_log_sum_exp(); });
}

void StepExecutor::ComputeLogits(int64_t first, std::span<const Row> rows) {
  const auto count = std::ssize(rows);
  model_->Logits(hidden_.data() + first * hidden_size_, count, logits_.data());
  if (NeedLogSumExp(rows)) model_->LogSumExp(logits_.data(), count, log_sum_exp_.data());
}

void StepExecutor::SampleOnDevice(int64_t first, std::span<const Row> rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& [sequence, row] = rows[i];
    if (!sequence->MakeSampleQuery(row, &queries_[i])) queries_[i].kind = SampleQuery::Kind::kNone;
  }
  model_->SampleRows(first, std::span(queries_).first(rows.size()),
                     std::span(results_).first(rows.size()), logits_.data(),
                     NeedLogSumExp(rows) ? log_sum_exp_.data() : nullptr);
}

const SampleResult* StepExecutor::ResultOf(size_t i) const {
  if (results_.empty()) return nullptr;
  const SampleResult& result = results_[i];
  const bool sampled =
      result.kind != SampleResult::Kind::kNone && result.kind != SampleResult::Kind::kTooMany;
  return sampled ? &result : nullptr;
}

void StepExecutor::Sample(std::span<const Row> rows) {
  const auto logits = [this](size_t i) {
    const auto width = static_cast<size_t>(vocab_size_);
    return logits_.span().subspan(i * width, ResultOf(i) == nullptr ? width : 0);
  };
  // The rows of a sequence are neighbours and one task: each row depends on the row before it.
  first_rows_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || rows[i].sequence != rows[i - 1].sequence) first_rows_.push_back(i);
  }
  pool_->ParallelFor(std::ssize(first_rows_), [&](int64_t task, int thread) {
    const size_t first = first_rows_[static_cast<size_t>(task)];
    Sequence& sequence = *rows[first].sequence;
    if (sequence.ended()) return;  // by a row of an earlier batch of logits
    for (size_t i = first; i < rows.size() && rows[i].sequence == &sequence; ++i) {
      sequence.SampleRow(rows[i].row_in_segment, logits(i), log_sum_exp_[i], ResultOf(i),
                         &scratch_[static_cast<size_t>(thread)]);
    }
  });
  batch_notifications_(true);
  for (size_t i = 0; i < rows.size(); ++i) {
    Sequence& sequence = *rows[i].sequence;
    if (sequence.ended()) continue;  // by an earlier row
    sequence.OnRow(rows[i].row_in_segment, logits(i), log_sum_exp_[i]);
  }
  batch_notifications_(false);
}

}  // namespace polysketch
