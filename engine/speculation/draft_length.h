// The length of the next draft: doubled after a draft that was accepted as a whole, short after one
// that was rejected early, 0 for a while when drafts are hardly ever accepted.
//
// Used by the engine thread only.
#pragma once

#include <cstdint>

namespace polysketch {

class DraftLength {
 public:
  // `max`: tokens of one draft; 0: no drafts.
  explicit DraftLength(int64_t max);

  int64_t max() const { return max_; }
  int64_t Next() const { return pause_ > 0 ? 0 : length_; }
  // A step verified `proposed` draft tokens and accepted the first `accepted`.
  void OnStep(int64_t proposed, int64_t accepted);

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
