// A completion: prefill of the prompt, then one token a step until a stop condition.
//
// Speculative decoding: a step may also verify a draft behind that token. Its rows are sampled in
// order, as if they had come in steps of their own, up to the first whose token is not the
// draft's; so the tokens, their log-probabilities and the end are the same with any draft.
//
// n > 1: the first choice processes all of the prompt but its last token; then it has forks, which
// go on from copies of its state.
//
// End conditions of a generated token, in this order: EOS (unless ignore_eos) and stop ids end with
// kStop, their text is left out unless include_stop_in_output; a stop string ends with kStop;
// max_tokens with kLength.
//
// It may follow a snapshot (a session, a restored state), and leave one: `keep` and Migrate. What
// is kept ends with at least one token that is not in the state, so that a continuation has one to
// run.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/prefix_cache/prefix_plan.h"
#include "engine/sampler/stop_matcher.h"
#include "engine/scheduler/sequence.h"
#include "engine/speculation/draft_length.h"
#include "engine/speculation/drafter.h"

namespace polysketch {

class GenerateSequence : public Sequence {
 public:
  // `request` is valid (sampling_params.h, snapshot/check.h); max_tokens and seed are its own or
  // those in their place, and not used when it resumes a Generation.
  GenerateSequence(const SequenceContext& context, RequestId id, GenerateRequest request,
                   int64_t max_tokens, uint64_t seed, std::shared_ptr<EventStream> stream);

  int64_t ReadyTokens(int64_t max_drafts) override;
  bool decoding() const override { return processed_ >= prompt_size(); }
  int64_t UnreadTokens() const override { return std::max<int64_t>(0, prompt_size() - processed_); }
  int64_t StateTokens() const override {
    return start_position() + prompt_size() + max_tokens_ - generated_;
  }
  Status Begin(SequenceState* state) override;
  std::span<const int32_t> NextTokens(int64_t n) const override;
  OutputRows WantedRows(int64_t n) const override;
  bool needs_log_sum_exp() const override {
    return params_.logprobs.has_value() || (group() != nullptr && group()->ranked());
  }
  bool MakeSampleQuery(int64_t row, SampleQuery* query) const override;
  void SampleRow(int64_t row, std::span<const float> logits, float log_sum_exp,
                 const SampleResult* answer, SamplerScratch* scratch) override;
  void OnRow(int64_t row, std::span<const float> logits, float log_sum_exp) override;
  int64_t OnSegment(int64_t n) override;
  void OnState(const SequenceState& state) override;
  bool storing() const override;
  void StoreState(const SequenceState& state, ThreadPool* pool) override;
  std::vector<std::unique_ptr<Sequence>> TakeForks() override;
  bool Migrate() override;
  void OnLeaving(const SequenceState* state) override;

 private:
  GenerateSequence(const GenerateSequence& parent, int choice);
  // Parts of the constructor.
  void Follow(std::span<const int32_t> prompt, std::vector<int32_t>* pending);
  void Resume(const Generation& generation);
  void StartSampler();
  void StartDecoder();
  Generation SaveGeneration() const;
  // The request as it stands when its choices part, with the whole prompt pending.
  std::function<Snapshot()> Beginning() const;

  // Tokens in start_state_.
  int64_t start_position() const { return start_state_ == nullptr ? 0 : start_state_->position; }

  int64_t prompt_size() const { return static_cast<int64_t>(prompt_->size()); }
  int32_t prompt(int64_t i) const { return (*prompt_)[static_cast<size_t>(i)]; }
  // Prompt tokens to process before it samples, or is forked.
  int64_t prefill_size() const {
    // Nothing is sampled behind a kept prompt: its last token stays for the continuation to run.
    const bool last_stays = forks_due_ || (keep_ && max_tokens_ == 0);
    return prompt_size() - (last_stays ? 1 : 0);
  }
  int64_t SegmentEnd() const {
    return prefix_ ? prefix_->SegmentEnd(processed_, prefill_size()) : prefill_size();
  }
  void Draft(int64_t most);
  std::optional<ProgressEvent> Progress() const override;
  void FillFinish(FinishEvent* finish) override;

  // Pushes the prompt tokens up to `end` that were not echoed yet, without log-probabilities.
  void EchoUpTo(int64_t end);
  // Pushes the next prompt token with the log-probability that the row before it gives.
  void EchoScored(std::span<const float> logits, float log_sum_exp);
  void PushEcho(TokenEvent event);
  // A token that SampleRow drew, on its way to the client.
  struct SampledToken {
    Result<int32_t> token;
    std::vector<TokenLogprob> top;  // the alternatives, when asked for
  };
  void EmitToken(SampledToken sampled, std::span<const float> logits, float log_sum_exp);
  // What of `text` may go out now; ends the sequence when a stop string matches.
  std::string Release(const std::string& text);
  bool IsStopToken(int32_t token) const;
  // The token after row `row` of the segment is still one of the prompt.
  bool IsPromptRow(int64_t row) const {
    return !decoding() && processed_ + row + 1 < prompt_size();
  }

  const GenerateParams params_;
  const int64_t max_tokens_;
  const uint64_t seed_;
  const bool keep_;
  std::optional<Sampler> sampler_;  // set by the constructor
  StopMatcher stop_matcher_;
  std::optional<IncrementalDecoder> decoder_;  // none without a tokenizer

  std::shared_ptr<const SavedState> start_state_;  // null: the empty one
  // Behind it: what is to be processed before sampling. That of all choices.
  std::shared_ptr<const std::vector<int32_t>> prompt_;
  TokenSet seen_;              // in the whole sequence
  std::vector<int32_t> tail_;  // its end
  int64_t prompt_tokens_ = 0;  // as Usage has them: those of the start too
  int64_t cached_tokens_ = 0;
  std::optional<PrefixPlan> prefix_;  // none for one with a past of its own

  bool forks_due_ = false;
  int64_t processed_ = 0;   // tokens behind the start that are in the state
  int64_t echoed_ = 0;      // prompt tokens pushed
  int64_t generated_ = 0;   // tokens sampled, before a migration too
  double logprob_sum_ = 0;  // of these, if needs_log_sum_exp
  int32_t last_token_ = 0;  // sampled, not yet processed
  std::optional<Clock::time_point> last_token_time_;
  std::shared_ptr<const Snapshot> snapshot_;  // at the end, if wanted

  std::vector<int32_t> next_;         // the next segment while decoding: last_token_ and its draft
  std::deque<SampledToken> sampled_;  // of the running segment, not yet taken
  int64_t sampled_rows_ = 0;          // of the running segment: its tokens that hold
  bool diverged_ = false;             // the rest of the draft does not hold
  DraftLength draft_length_;
  std::unique_ptr<Drafter> drafter_;  // made for the first draft
  std::vector<int32_t> output_;       // what the drafter has not seen
};

}  // namespace polysketch
