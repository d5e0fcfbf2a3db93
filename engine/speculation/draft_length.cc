#include "engine/speculation/draft_length.h"

#include <algorithm>

namespace polysketch {

DraftLength::DraftLength(int64_t max) : max_(max), length_(std::min(max, kFirst)) {}

void DraftLength::OnStep(int64_t proposed, int64_t accepted) {
  if (pause_ > 0) --pause_;
  if (proposed == 0) return;
  rate_ += (static_cast<double>(accepted) / static_cast<double>(proposed) - rate_) / 4;
  if (accepted == proposed) {
    length_ = std::min(max_, 2 * length_);
    if (length_ >= kFirst) next_pause_ = kShortPause;
  } else {
    length_ = std::clamp<int64_t>(accepted + 1, 1, max_);
  }
  if (rate_ < kMinRate) {
    pause_ = next_pause_;
    next_pause_ = std::min(kLongPause, 2 * next_pause_);
    rate_ = 0.5;
    length_ = std::min(max_, int64_t{2});
  }
}

}  // namespace polysketch
