#include "engine/scheduler/sequence.h"

#include <utility>

#include "base/check.h"

namespace polysketch {

constexpr std::chrono::seconds kProgressInterval{1};

Sequence::Sequence(const SequenceContext& context, RequestId id, RequestInfo info,
                   std::shared_ptr<EventStream> stream)
    : context_(context),
      id_(id),
      info_(std::move(info)),
      part_(info_.principal.name + '\0' + info_.principal.part),
      stream_(std::move(stream)) {}

Sequence::Sequence(const Sequence& parent, int choice)
    : context_(parent.context_),
      id_(parent.id_),
      info_(parent.info_),
      part_(parent.part_),
      stream_(parent.stream_),
      group_(parent.group_),
      choice_(choice),
      admitted_(parent.admitted_),
      last_progress_(parent.last_progress_) {
  PS_CHECK(group_ != nullptr);
  group_->Add();
}

void Sequence::Push(Event event) {
  if (group_ != nullptr) return group_->Push(choice_, std::move(event));
  stream_->Push(std::move(event));
}

void Sequence::OnAdmitted() {
  if (admitted_) return;
  admitted_ = context_.now();
  last_progress_ = *admitted_;
  context_.observer->OnAdmitted(*admitted_ - info_.arrival);
}

void Sequence::OnStepBegins(int64_t n) {
  if (!info_.record_chunks || decoding() || missing() > 0) return;
  chunk_start_ = context_.now();
  chunk_tokens_ = n;
}

void Sequence::OnStepEnds() {
  if (!chunk_start_) return;
  chunk_times_.Add(*chunk_start_, context_.now(), chunk_tokens_);
  chunk_start_.reset();
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

void Sequence::EndInstead(Status status) {
  finish_.reset();
  End(FinishReason::kError, std::move(status));
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
  finish_->chunks = chunk_times_.times();
  if (group_ != nullptr) {
    std::optional<FinishEvent> whole = group_->Finish(choice_, std::move(*finish_));
    if (!whole) return;
    *finish_ = *std::move(whole);
  }
  context_.observer->OnFinished(*finish_);
  stream_->Push(std::move(*finish_));
}

}  // namespace polysketch
