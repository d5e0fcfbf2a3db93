// Speculative decoding of one sequence. The segment of a decode step is the last token and a draft
// of the next ones. Its rows are sampled in order, as if each were a step of its own, up to the
// first whose token differs from the draft. So tokens, log-probabilities and the end of a
// completion do not depend on drafts.
//
// Used by the engine thread. OnSampled is called by a thread of the pool while the engine thread
// waits for it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/request/events.h"
#include "engine/scheduler/sequence.h"
#include "engine/speculation/draft_length.h"
#include "engine/speculation/drafter.h"

namespace polysketch {

// A token that was sampled from a row and is not yet part of the output.
struct SampledToken {
  Result<int32_t> token;
  std::vector<TokenLogprob> top;  // alternatives, if they are reported
};

class DraftVerifier {
 public:
  // max_drafts: maximum draft tokens of one step; 0: no drafts.
  DraftVerifier(const SequenceContext& context, int64_t max_drafts)
      : context_(context), length_(max_drafts) {}

  // Makes the segment of a decode step: `last`, the last token, and at most `max` draft tokens.
  // `prompt` is the input that the output follows.
  void Propose(int32_t last, std::span<const int32_t> prompt, int64_t max);
  // Empty before the first decode step.
  std::span<const int32_t> segment() const { return segment_; }

  // Adds the token that was sampled from row `row` of the segment, or from the last row of the
  // prompt.
  void OnSampled(int64_t row, SampledToken sampled);
  // The row after those of OnSampled is not sampled in this step: its token comes later, by
  // OnSampledLate. Later rows are not sampled.
  void OnLate() { diverged_ = late_ = true; }
  // The step has ended.
  void OnSampledLate(int32_t token) { Note(token); }
  // Whether the token of an earlier row differs from the draft, so that later rows are not sampled.
  bool diverged() const { return diverged_; }
  // Removes and returns the next sampled token, in order of rows; nullopt after the last. The token
  // becomes part of the output.
  std::optional<SampledToken> TakeSampled();
  // Gives up the drafter, whose state takes memory: the next one starts with `output`.
  void Forget(std::span<const int32_t> output) {
    drafter_.reset();
    if (length_.max() > 0) unseen_.assign(output.begin(), output.end());
  }
  // Ends a step of n tokens. Returns how many tokens of the segment are accepted: at least one, and
  // all n of a step of the prompt. A row that is late accepts the tokens up to its own.
  int64_t EndStep(int64_t n);

 private:
  // Keeps a token of the output for the drafter.
  void Note(int32_t token) {
    if (length_.max() > 0) unseen_.push_back(token);
  }

  const SequenceContext& context_;
  DraftLength length_;
  std::unique_ptr<Drafter> drafter_;  // made for the first draft
  std::vector<int32_t> unseen_;       // output tokens that the drafter has not seen
  std::vector<int32_t> segment_;
  // Of the current step.
  std::deque<SampledToken> sampled_;
  int64_t taken_ = 0;
  bool diverged_ = false;
  bool late_ = false;
};

}  // namespace polysketch
