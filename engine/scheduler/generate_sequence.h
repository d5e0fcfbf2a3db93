// A completion: prefill of its input, then one token a step until an end condition.
//
// This class decides the order of the work; its members do the work: Continuation (the state it
// started from, and the snapshots that continue it), PrefixPlan (prefix cache), PromptEcho,
// Sampler, DraftVerifier, TokenMasks (grammar), OutputText (characters, stop strings).
//
// With a grammar, a row whose mask is late keeps its logits; its token is sampled, between two
// steps, once the mask is there. Other sequences never wait for it.
//
// End conditions of a generated token, in this order: EOS ids (unless ignore_eos) and stop ids end
// with kStop, and their text is left out unless include_stop_in_output; a stop string ends with
// kStop; max_tokens ends with kLength. Before min_tokens end tokens are not sampled, and stop
// strings do not match.
//
// n > 1: the first choice processes all of the input but its last token. Then it forks: the other
// choices continue from copies of its state.
//
// A completion may start from a snapshot, and return one (`keep`, Migrate). The last token of the
// returned snapshot is not in its state, so that a continuation has a token to process.
//
// After its state was dropped, the input and the output up to where it was are processed again
// without rows: nothing is sampled, returned or stored twice.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/grammar/token_masks.h"
#include "engine/prefix_cache/prefix_plan.h"
#include "engine/scheduler/continuation.h"
#include "engine/scheduler/draft_verifier.h"
#include "engine/scheduler/output_text.h"
#include "engine/scheduler/prompt_echo.h"
#include "engine/scheduler/sequence.h"

namespace polysketch {

class GenerateSequence : public Sequence {
 public:
  // `request` is valid (sampling_params.h, snapshot/check.h). max_tokens and seed replace those of
  // `request`. For a request that resumes a Generation, all parameters are those of the Generation.
  GenerateSequence(const SequenceContext& context, RequestId id, GenerateRequest request,
                   int64_t max_tokens, uint64_t seed, std::shared_ptr<EventStream> stream);

  int64_t ReadyTokens(int64_t max_drafts) override;
  bool awaits_mask() const override { return late_.has_value(); }
  bool decoding() const override { return missing_ == 0 && processed_ >= input_size(); }
  int64_t UnprocessedInput() const override {
    return std::max<int64_t>(0, input_size() - processed_);
  }
  int64_t StateTokens() const override {
    return KnownTokens() + generation_.max_tokens - generation_.generated;
  }
  int64_t KnownTokens() const override { return past_.start_position() + past_.size(); }
  std::shared_ptr<const SavedState> Begin() override;
  void OnLoaded(SequenceState* state) override;
  std::optional<int64_t> DropCost() const override { return processed_; }
  void OnDropped(bool to_source) override;
  int64_t missing() const override { return missing_; }
  std::span<const int32_t> NextTokens(int64_t n) const override;
  OutputRows OutputRowsOf(int64_t n) const override;
  bool needs_log_sum_exp() const override {
    return params().logprobs.has_value() || (group() != nullptr && group()->ranked());
  }
  void PrepareRows(int64_t n) override;
  bool MakeSampleQuery(int64_t row, SampleQuery* query) const override;
  void SampleRow(int64_t row, std::span<const float> logits, float log_sum_exp,
                 const SampleResult* result, SamplerScratch* scratch) override;
  void OnRow(int64_t row, std::span<const float> logits, float log_sum_exp) override;
  int64_t OnSegment(int64_t n) override;
  void OnState(const SequenceState& state) override;
  bool storing() const override;
  void StoreState(const SequenceState& state, ThreadPool* pool) override;
  std::vector<std::unique_ptr<Sequence>> TakeForks() override;
  bool will_fork() const override { return forks_due_; }
  bool Migrate() override;
  void OnLeaving() override;

 private:
  GenerateSequence(const GenerateSequence& parent, int choice);

  const GenerateParams& params() const { return generation_.params; }
  int64_t input_size() const { return past_.input_size(); }
  // Number of input tokens to process before a token is sampled, or before the forks are made.
  int64_t prefill_size() const {
    // A kept prompt without output leaves its last token for the continuation to process.
    const bool last_stays = forks_due_ || (keep_ && generation_.max_tokens == 0);
    return input_size() - (last_stays ? 1 : 0);
  }
  bool ended_by_itself() const {
    return ended() &&
           (finish().reason == FinishReason::kStop || finish().reason == FinishReason::kLength);
  }
  // Whether the token after row `row` of the segment is a token of the input.
  bool IsInputRow(int64_t row) const { return !decoding() && processed_ + row + 1 < input_size(); }
  bool IsEos(int32_t token) const;
  bool IsStopToken(int32_t token) const;

  std::optional<ProgressEvent> Progress() const override;
  void FillFinish(FinishEvent* finish) override;
  bool StoresPrefix() const;
  // Whether the state at the end of the answer should be stored in the prefix cache.
  bool AwaitsEnd() const;
  // Whether the sequence has ended with a snapshot of its own.
  bool LeavesSnapshot() const;
  // Pushes the prompt tokens before `end` that were not returned yet, without log-probabilities.
  void EchoUpTo(int64_t end);
  // Pushes the prompt tokens that were not returned yet. Decoding follows.
  void FinishPrefill();
  // Ends after a logit that is not finite, with `status` or as the error of the client's state.
  void EndBy(const Status& status);
  // Starts the output's way through its grammar; does nothing without one.
  void StartMasks();
  // Index of the mask of a row of the step.
  int64_t MaskRow(int64_t row) const { return decoding() ? row : 0; }
  SampledToken SampleMasked(const Result<TokenMask>& mask, std::span<const float> logits,
                            float log_sum_exp, SamplerScratch* scratch);
  // Samples the row whose mask was late. Returns false while the mask is not there.
  bool SampleLate(std::chrono::milliseconds patience);
  // Makes a sampled token part of the output.
  void Emit(SampledToken sampled, std::span<const float> logits, float log_sum_exp);
  Generation SaveGeneration() const;

  Generation generation_;  // SaveGeneration fills in what the other members know
  const bool keep_;
  const bool migrates_;  // GenerateRequest::migrates
  Continuation past_;
  Sampler sampler_;
  std::shared_ptr<const Grammar> grammar_;  // null: none
  std::optional<TokenMasks> masks_;         // set with grammar_
  std::optional<PrefixPlan> prefix_;        // unset for a sequence that follows a snapshot
  PromptEcho echo_;
  DraftVerifier drafts_;
  OutputText text_;

  bool forks_due_ = false;
  // Tokens that were processed after those of the state that the sequence started from.
  int64_t processed_ = 0;
  int64_t missing_ = 0;     // of them, not in the state: it was dropped
  int64_t forked_at_ = 0;   // of them, in the ForkSource
  int32_t last_token_ = 0;  // sampled, not yet processed
  std::optional<Clock::time_point> last_token_time_;
  std::optional<int32_t> stop_token_;  // FinishEvent::stop_token
  // A row whose mask was late. Its segment is processed, its token is not sampled.
  struct LateRow {
    int64_t mask_row;
    bool first_token;  // the row follows the prompt
    std::vector<float> logits;
    float log_sum_exp;
  };
  std::optional<LateRow> late_;
  bool was_late_ = false;  // the last mask: the next is not waited for
  // At the end, for a continuation.
  std::optional<StateSaver> saver_;
  std::shared_ptr<const SavedState> end_state_;
  std::shared_ptr<const Snapshot> snapshot_;
};

}  // namespace polysketch
