// A score: the log-probability of every token of a text that arrives through a TokenFeed, in
// constant memory. The text may continue a snapshot, which stays as it is.
//
// A token is processed once its successor is known, because the row of a token yields the
// log-probability of its successor. So the last token of a text is never processed.
//
// The tokens of a short text are kept, so that its state can be dropped.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/scheduler/sequence.h"
#include "engine/snapshot/snapshot.h"

namespace polysketch {

class ScoreSequence : public Sequence {
 public:
  ScoreSequence(const SequenceContext& context, RequestId id, ScoreRequest request,
                std::shared_ptr<EventStream> stream);

  // Pulls from the feed. Ends the sequence at the end of the input, and with kError
  // (INVALID_ARGUMENT) for an id outside the vocabulary or an input without tokens.
  int64_t ReadyTokens(int64_t max_drafts) override;
  bool decoding() const override { return false; }
  std::optional<Clock::time_point> starved_since() const override;
  int64_t UnprocessedInput() const override {
    return static_cast<int64_t>(buffer_.size() + feed_->available());
  }
  int64_t StateTokens() const override { return start_position_ + pulled(); }
  std::shared_ptr<const SavedState> Begin() override { return start_; }
  std::optional<int64_t> DropCost() const override;
  void OnDropped(bool /*to_source*/) override { missing_ = processed_; }
  int64_t missing() const override { return missing_; }
  std::span<const int32_t> NextTokens(int64_t n) const override;
  OutputRows OutputRowsOf(int64_t) const override {
    return missing_ > 0 ? OutputRows::kNone : OutputRows::kAll;
  }
  bool needs_log_sum_exp() const override { return true; }
  void OnRow(int64_t row, std::span<const float> logits, float log_sum_exp) override;
  bool wants_far_mass() const override { return !far_sums_.empty() && missing_ == 0; }
  void OnFarMass(int layer, std::span<const float> rows) override;
  int64_t OnSegment(int64_t n) override;

 private:
  // Maximum number of processed tokens that are kept for the case that the state is dropped. The
  // state of a longer text is not.
  static constexpr int64_t kMaxKept = 16384;

  // First position of the first range of far masses but one.
  static constexpr int64_t kFirstRange = 64;

  // Far masses of a layer in the positions of a range, [0, 64) or [64 2^i, 128 2^i).
  struct FarSums {
    int64_t queries = 0;
    std::vector<double> sums;  // by head
  };

  // Fills buffer_ from the feed. INVALID_ARGUMENT for an id outside the vocabulary.
  Status Pull();
  int64_t pulled() const { return processed_ + static_cast<int64_t>(buffer_.size()); }
  std::optional<ProgressEvent> Progress() const override;
  void FillFinish(FinishEvent* finish) override;

  const std::shared_ptr<TokenFeed> feed_;
  const std::shared_ptr<const SavedState> start_;  // null: the empty state
  const int64_t start_position_;                   // tokens in start_
  std::vector<int32_t> buffer_;                    // pulled, or of the snapshot, and not processed
  const int64_t pending_;                          // tokens of the snapshot after start_
  int64_t processed_ = 0;                          // after start_
  std::vector<int32_t> kept_;                      // the processed tokens, at most kMaxKept
  int64_t missing_ = 0;                            // of them, not in the state: it was dropped
  std::vector<float> logprobs_;                    // of the current segment
  std::vector<bool> greedy_;                       // one for each
  std::vector<int32_t> tokens_;                    // one for each
  double logprob_sum_ = 0;
  // By layer and first position; empty: not wanted.
  std::vector<std::map<int64_t, FarSums>> far_sums_;
  std::optional<Clock::time_point> starved_since_;
};

}  // namespace polysketch
