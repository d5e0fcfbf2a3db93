#include "engine/scheduler/score_sequence.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "engine/request/context_limit.h"
#include "engine/sampler/logprobs.h"

namespace polysketch {

ScoreSequence::ScoreSequence(const SequenceContext& context, RequestId id, ScoreRequest request,
                             std::shared_ptr<EventStream> stream)
    : Sequence(context, id, std::move(request.info), std::move(stream)),
      feed_(std::move(request.feed)),
      start_(request.start == nullptr ? nullptr : request.start->state),
      start_position_(start_ == nullptr ? 0 : start_->position),
      buffer_(request.start == nullptr ? std::vector<int32_t>() : request.start->pending),
      pending_(std::ssize(buffer_)),
      far_sums_(request.far_mass ? context.far_heads.size() : 0) {}

std::optional<int64_t> ScoreSequence::DropCost() const {
  if (processed_ > kMaxKept) return std::nullopt;
  return processed_;
}

int64_t ScoreSequence::ReadyTokens(int64_t) {
  if (missing_ > 0) return missing_;
  // Read before the pull: if the feed is closed by then, the pull sees all its tokens.
  const bool closed = feed_->closed();
  if (const Status status = Pull(); !status.ok()) {
    End(FinishReason::kError, status);
    return 0;
  }
  const int64_t ready = std::ssize(buffer_) - 1;
  if (ready > 0) {
    starved_since_.reset();
    return ready;
  }
  if (!closed || !feed_->Exhausted()) {
    if (!starved_since_) starved_since_ = context().now();
  } else if (pulled() == pending_) {
    End(FinishReason::kError, InvalidArgument("tokens: expected at least one, found none"));
  } else {
    MarkPrefillDone();
    End(FinishReason::kStop, Status());
  }
  return 0;
}

Status ScoreSequence::Pull() {
  const size_t max = static_cast<size_t>(context().max_step_tokens) + 1;
  const size_t known = buffer_.size();
  if (known < max) feed_->Pull(max - known, &buffer_);
  const int64_t tokens = start_position_ + pulled();
  PS_RETURN_IF_ERROR(CheckContext(context().context_limit, tokens, 0));
  for (size_t i = known; i < buffer_.size(); ++i) {
    if (buffer_[i] >= 0 && buffer_[i] < context().vocab_size) continue;
    return InvalidArgument("tokens[", processed_ + static_cast<int64_t>(i) - pending_,
                           "]: expected an id in [0, ", context().vocab_size, "), found ",
                           buffer_[i]);
  }
  return Status();
}

std::optional<Clock::time_point> ScoreSequence::starved_since() const {
  // Input that arrived since ReadyTokens counts: the step in between may have taken long.
  if (feed_->available() > 0 || feed_->closed()) return std::nullopt;
  return starved_since_;
}

std::span<const int32_t> ScoreSequence::NextTokens(int64_t n) const {
  if (missing_ > 0)
    return std::span(kept_).last(static_cast<size_t>(missing_)).first(static_cast<size_t>(n));
  return std::span(buffer_).first(static_cast<size_t>(n));
}

void ScoreSequence::OnRow(int64_t row, std::span<const float> logits, float log_sum_exp) {
  if (processed_ + row + 1 < pending_) return;  // the next token is not of the input
  const int32_t target = buffer_[static_cast<size_t>(row) + 1];
  const float logprob = logits[static_cast<size_t>(target)] - log_sum_exp;
  if (!std::isfinite(logprob)) {
    End(FinishReason::kError, Internal("the model gave a logit that is not finite at token ",
                                       start_position_ + processed_ + row));
  }
  logprobs_.push_back(logprob);
  greedy_.push_back(IsGreedy(logits, target));
  tokens_.push_back(target);
  logprob_sum_ += logprob;
}

void ScoreSequence::OnFarMass(int layer, std::span<const float> rows) {
  const auto heads = static_cast<size_t>(context().far_heads[static_cast<size_t>(layer)]);
  // The queries that give log-probabilities, as in OnRow.
  const int64_t skipped = std::max<int64_t>(pending_ - 1 - processed_, 0);
  for (auto row = static_cast<size_t>(skipped); row * heads < rows.size(); ++row) {
    const auto position = static_cast<uint64_t>(start_position_ + processed_) + row;
    const uint64_t first = position < kFirstRange ? 0 : std::bit_floor(position);
    FarSums& range = far_sums_[static_cast<size_t>(layer)][static_cast<int64_t>(first)];
    range.sums.resize(heads);
    ++range.queries;
    for (size_t h = 0; h < heads; ++h) range.sums[h] += rows[row * heads + h];
  }
}

int64_t ScoreSequence::OnSegment(int64_t n) {
  if (missing_ > 0) {
    missing_ -= n;
    return n;
  }
  if (!ended() && !logprobs_.empty()) {
    const int64_t first = start_position_ + std::max(processed_ + 1, pending_);
    Push(ScoreEvent{first, std::move(logprobs_), std::move(greedy_), std::move(tokens_)});
  }
  logprobs_.clear();
  greedy_.clear();
  tokens_.clear();
  processed_ += n;
  if (processed_ <= kMaxKept) {
    kept_.insert(kept_.end(), buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(n));
  } else {
    kept_ = {};
  }
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(n));
  return n;
}

std::optional<ProgressEvent> ScoreSequence::Progress() const {
  const int64_t total = feed_->closed() ? pulled() + static_cast<int64_t>(feed_->available()) : 0;
  return ProgressEvent{processed_, total};
}

void ScoreSequence::FillFinish(FinishEvent* finish) {
  finish->usage.prompt_tokens = start_position_ + pulled();
  finish->usage.cached_tokens = start_position_;
  finish->logprob_sum = logprob_sum_;
  for (size_t layer = 0; layer < far_sums_.size(); ++layer) {
    for (auto& [first, range] : far_sums_[layer]) {
      for (double& sum : range.sums) sum /= static_cast<double>(range.queries);
      finish->far_mass.push_back(
          {static_cast<int>(layer), first, range.queries, std::move(range.sums)});
    }
  }
}

}  // namespace polysketch
