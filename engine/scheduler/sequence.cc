#include "engine/scheduler/sequence.h"

#include <utility>

#include "base/check.h"

namespace polysketch {

constexpr std::chrono::seconds kProgressInterval{1};

Sequence::Sequence(const SequenceContext& context, RequestId id, RequestInfo info,
                   std::shared_ptr<EventStream> stream)
    : context_(context), id_(id), info_(std::move(info)), stream_(std::move(stream)) {}

void Sequence::OnAdmitted() {
  admitted_ = context_.now();
  last_progress_ = *admitted_;
  context_.observer->OnAdmitted(*admitted_ - info_.arrival);
}

void Sequence::MarkPrefillDone() {
  if (!prefill_done_) prefill_done_ = context_.now();
}

void Sequence::MarkFirstToken() {
  if (first_token_) return;
  first_token_ = context_.now();
  context_.observer->OnFirstToken(*first_token_ - info_.arrival);
}

void Sequence::MaybeReportProgress() {
  const Clock::time_point now = context_.now();
  if (now - last_progress_ < kProgressInterval) return;
  if (const std::optional<ProgressEvent> progress = Progress()) {
    last_progress_ = now;
    Push(*progress);
  }
}

void Sequence::End(FinishReason reason, Status status) {
  if (finish_) return;
  finish_.emplace();
  finish_->reason = reason;
  finish_->status = std::move(status);
}

void Sequence::PushFinish() {
  PS_CHECK(finish_.has_value()) << "PushFinish before End";
  FillFinish(&*finish_);
  const Clock::time_point now = context_.now();
  Timings& timings = finish_->timings;
  timings.total = now - info_.arrival;
  timings.queue = admitted_.value_or(now) - info_.arrival;
  if (admitted_) timings.prefill = prefill_done_.value_or(now) - *admitted_;
  if (prefill_done_) timings.decode = now - *prefill_done_;
  if (first_token_) timings.first_token = *first_token_ - info_.arrival;
  context_.observer->OnFinished(*finish_);
  Push(std::move(*finish_));
}

}  // namespace polysketch
