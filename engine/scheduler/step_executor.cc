#include "engine/scheduler/step_executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace polysketch {

StepExecutor::StepExecutor(LanguageModel* model, int max_step_tokens, int draw_threads,
                           std::function<void(bool)> hold_readers)
    : model_(model),
      own_pool_(model->pool() == nullptr ? std::make_unique<ThreadPool>(draw_threads) : nullptr),
      pool_(own_pool_ == nullptr ? model->pool() : own_pool_.get()),
      hold_readers_(std::move(hold_readers)),
      hidden_size_(model->hidden_size()),
      vocab_size_(model->vocab_size()),
      hidden_(static_cast<size_t>(max_step_tokens) * static_cast<size_t>(hidden_size_)),
      gathered_(static_cast<size_t>(kLogitRows * hidden_size_)),
      logits_(static_cast<size_t>(kLogitRows * vocab_size_)),
      log_sum_exp_(kLogitRows),
      queries_(model->draws() ? kLogitRows : 0),
      answers_(queries_.size()),
      scratch_(static_cast<size_t>(pool_->threads())) {}

void StepExecutor::Run(std::span<const Item> batch) {
  segments_.clear();
  rows_.clear();
  int64_t hidden_rows = 0;
  for (const Item& item : batch) {
    const Sequence::Rows wanted = item.sequence->WantedRows(item.tokens);
    const bool all = wanted == Sequence::Rows::kAll;
    segments_.push_back({item.state, item.sequence->NextTokens(item.tokens), all});
    const int64_t count = all ? item.tokens : 1;
    if (wanted != Sequence::Rows::kNone) {
      for (int64_t i = 0; i < count; ++i) {
        rows_.push_back({item.sequence, all ? i : item.tokens - 1, hidden_rows + i});
      }
    }
    hidden_rows += count;
  }
  PS_CHECK(static_cast<size_t>(hidden_rows * hidden_size_) <= hidden_.size());

  const Clock::time_point start = Clock::now();
  model_->Step(segments_, model_->draws() ? nullptr : hidden_.data());
  parts_ = {.layers = Clock::now() - start};
  if (DeviceFailed(batch)) return;
  for (size_t first = 0; first < rows_.size(); first += kLogitRows) {
    HandOut(std::span(rows_).subspan(first, std::min<size_t>(kLogitRows, rows_.size() - first)));
    if (DeviceFailed(batch)) return;
  }
  for (const Item& item : batch) {
    const int64_t kept = item.sequence->OnSegment(item.tokens);
    PS_CHECK(kept >= 1 && kept <= item.tokens);
    if (kept < item.tokens) item.state->Cut(item.state->position() - item.tokens + kept);
    item.sequence->OnState(*item.state);
  }
}

bool StepExecutor::DeviceFailed(std::span<const Item> batch) const {
  const Status status = model_->status();
  if (status.ok()) return false;
  for (const Item& item : batch) item.sequence->End(FinishReason::kError, status);
  return true;
}

void StepExecutor::HandOut(std::span<const Row> rows) {
  const Clock::time_point start = Clock::now();
  model_->draws() ? AskModel(rows) : MakeLogits(rows);
  if (!model_->status().ok()) return;  // Run ends the sequences: these logits are worthless
  const Clock::time_point sampling = Clock::now();
  parts_.logits += sampling - start;
  Sample(rows);
  parts_.sampling += Clock::now() - sampling;
}

bool StepExecutor::NeedLogSumExp(std::span<const Row> rows) {
  return std::any_of(rows.begin(), rows.end(),
                     [](const Row& row) { return row.sequence->needs_log_sum_exp(); });
}

void StepExecutor::MakeLogits(std::span<const Row> rows) {
  const auto count = static_cast<int64_t>(rows.size());
  const float* hidden = hidden_.data() + rows.front().hidden_row * hidden_size_;
  if (rows.back().hidden_row - rows.front().hidden_row != count - 1) {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(gathered_.data() + i * hidden_size_,
                  hidden_.data() + rows[i].hidden_row * hidden_size_,
                  static_cast<size_t>(hidden_size_) * sizeof(float));
    }
    hidden = gathered_.data();
  }
  model_->Logits(hidden, count, logits_.data());
  if (NeedLogSumExp(rows)) model_->LogSumExp(logits_.data(), count, log_sum_exp_.data());
}

void StepExecutor::AskModel(std::span<const Row> rows) {
  hidden_rows_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    hidden_rows_.push_back(rows[i].hidden_row);
    const bool asks = rows[i].sequence->AskRow(rows[i].row_in_segment, &queries_[i]);
    if (!asks) queries_[i].kind = RowQuery::Kind::kNone;
  }
  model_->Draw(hidden_rows_, std::span(queries_).first(rows.size()),
               std::span(answers_).first(rows.size()), logits_.data(),
               NeedLogSumExp(rows) ? log_sum_exp_.data() : nullptr);
}

const RowAnswer* StepExecutor::AnswerOf(size_t i) const {
  if (answers_.empty()) return nullptr;
  const RowAnswer& answer = answers_[i];
  const bool answered =
      answer.kind != RowAnswer::Kind::kNone && answer.kind != RowAnswer::Kind::kTooMany;
  return answered ? &answer : nullptr;
}

void StepExecutor::Sample(std::span<const Row> rows) {
  const auto logits = [this](size_t i) {
    const auto width = static_cast<size_t>(vocab_size_);
    return logits_.span().subspan(i * width, AnswerOf(i) == nullptr ? width : 0);
  };
  // The rows of a sequence stand together, and are one task: each depends on the one before.
  first_rows_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || rows[i].sequence != rows[i - 1].sequence) first_rows_.push_back(i);
  }
  pool_->ParallelFor(std::ssize(first_rows_), [&](int64_t task, int thread) {
    const size_t first = first_rows_[static_cast<size_t>(task)];
    Sequence& sequence = *rows[first].sequence;
    if (sequence.ended()) return;  // by a row of the batch before
    for (size_t i = first; i < rows.size() && rows[i].sequence == &sequence; ++i) {
      sequence.DrawRow(rows[i].row_in_segment, logits(i), log_sum_exp_[i], AnswerOf(i),
                       &scratch_[static_cast<size_t>(thread)]);
    }
  });
  hold_readers_(true);
  for (size_t i = 0; i < rows.size(); ++i) {
    Sequence& sequence = *rows[i].sequence;
    if (sequence.ended()) continue;  // by an earlier row
    sequence.OnRow(rows[i].row_in_segment, logits(i), log_sum_exp_[i]);
  }
  hold_readers_(false);
}

}  // namespace polysketch
