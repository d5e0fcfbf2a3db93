// The length of the next draft: doubled after a draft that was accepted as a whole, short after one
// that was rejected early, 0 for a while when drafts are hardly ever accepted.
//
// Used by the engine thread only.
#pragma once

#include <algorithm>
#include <cstdint>

namespace polysketch {

class DraftLength {
 public:
  // `max`: maximum tokens of one draft; 0: no drafts.
  explicit DraftLength(int64_t max) : max_(max), length_(std::min(max, kFirst)) {}

  int64_t max() const { return max_; }
  int64_t Next() const { return pause_ > 0 ? 0 : length_; }
  // Called after a step that verified `proposed` draft tokens and accepted the first `accepted`.
  void OnStep(int64_t proposed, int64_t accepted) {
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

 private:
  static constexpr int64_t kFirst = 4;
  static constexpr double kMinRate = 0.2;  // below, the rows of a draft cost more than it saves
  static constexpr int64_t kShortPause = 16;
  static constexpr int64_t kLongPause = 512;

  const int64_t max_;
  int64_t length_;
  double rate_ = 0.5;  // share of draft tokens that are accepted, smoothed
  int64_t pause_ = 0;  // steps
  int64_t next_pause_ = kShortPause;
};

}  // namespace polysketch
