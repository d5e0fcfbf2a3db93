#include "engine/scheduler/draft_verifier.h"

#include <algorithm>
#include <utility>

#include "engine/speculation/ngram_drafter.h"

namespace polysketch {

void DraftVerifier::Propose(int32_t last, std::span<const int32_t> prompt, int64_t max) {
  segment_.assign(1, last);
  max = std::min(max, length_.Next());
  if (max <= 0) return;
  if (drafter_ == nullptr) {
    drafter_ = context_.new_drafter ? context_.new_drafter() : std::make_unique<NgramDrafter>();
    drafter_->Append(prompt);
  }
  drafter_->Append(unseen_);
  unseen_.clear();
  const std::vector<int32_t> draft = drafter_->Propose(max);
  segment_.insert(segment_.end(), draft.begin(), draft.end());
}

void DraftVerifier::OnSampled(int64_t row, SampledToken sampled) {
  const auto next = static_cast<size_t>(row) + 1;
  const bool drafted = next < segment_.size();
  diverged_ = !sampled.token.ok() || (drafted && segment_[next] != *sampled.token);
  sampled_.push_back(std::move(sampled));
}

std::optional<SampledToken> DraftVerifier::TakeSampled() {
  if (sampled_.empty()) return std::nullopt;
  SampledToken sampled = std::move(sampled_.front());
  sampled_.pop_front();
  ++taken_;
  if (sampled.token.ok()) Note(*sampled.token);
  return sampled;
}

int64_t DraftVerifier::EndStep(int64_t n) {
  int64_t accepted = n;
  if (!segment_.empty()) {
    // A row that is not finite yields no token; the first token of the segment is accepted anyway.
    accepted = std::max<int64_t>(taken_ + (late_ ? 1 : 0), 1);
    length_.OnStep(n - 1, accepted - 1);
    if (n > 1) context_.observer->OnDraft(n - 1, accepted - 1);
  }
  sampled_.clear();
  taken_ = 0;
  diverged_ = late_ = false;
  return accepted;
}

}  // namespace polysketch
