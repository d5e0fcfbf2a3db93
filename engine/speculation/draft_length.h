// How many tokens are worth drafting: twice as many when all of a draft held, few when it broke
// early, none for a while when drafts hardly ever hold.
#pragma once

#include <cstdint>

namespace polysketch {

class DraftLength {
 public:
  // `most`: of one draft; 0: never any.
  explicit DraftLength(int64_t most);

  int64_t most() const { return most_; }
  int64_t Next() const { return pause_ > 0 ? 0 : length_; }
  // A step went by with `proposed` draft tokens, of which the first `accepted` held.
  void OnStep(int64_t proposed, int64_t accepted);

 private:
  static constexpr int64_t kFirst = 4;
  static constexpr double kWorth = 0.2;  // of draft tokens that hold: below, rows cost more
  static constexpr int64_t kShortPause = 16;
  static constexpr int64_t kLongPause = 512;

  const int64_t most_;
  int64_t length_;
  double rate_ = 0.5;  // of draft tokens that hold, smoothed
  int64_t pause_ = 0;  // steps
  int64_t next_pause_ = kShortPause;
};

}  // namespace polysketch
