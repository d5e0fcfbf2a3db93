// One sequence of a request: which tokens it processes next, and what it does with the rows that a
// step returns. The scheduler owns its slot and its state.
//
// Used by the engine thread only, except SampleRow.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "engine/model/batch.h"
#include "engine/request/observer.h"
#include "engine/request/request.h"
#include "engine/sampler/sampler.h"
#include "engine/scheduler/choices.h"
#include "engine/snapshot/snapshot.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {

class Drafter;
class PrefixCache;

// What all sequences of an engine share. The context outlives them.
struct SequenceContext {
  const Tokenizer* tokenizer = nullptr;  // null: token ids only
  int vocab_size = 0;
  std::vector<int32_t> eos_ids = {};  // as in EngineOptions
  int64_t context_limit = 0;          // as in EngineOptions
  int max_step_tokens = 512;          // of one sequence
  EngineObserver* observer = nullptr;
  std::function<Clock::time_point()> now = [] { return Clock::now(); };
  // Maximum draft tokens a step of a request that sets none; 0: no drafts.
  int draft_tokens = 0;
  // Makes the drafter of one sequence. Empty: prompt lookup.
  std::function<std::unique_ptr<Drafter>()> new_drafter = {};
  PrefixCache* prefix_cache = nullptr;  // null: none
  std::vector<int> far_heads = {};      // LanguageModel::FarHeads
};

class Sequence {
 public:
  Sequence(const SequenceContext& context, RequestId id, RequestInfo info,
           std::shared_ptr<EventStream> stream);
  virtual ~Sequence() = default;
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  RequestId id() const { return id_; }  // of the request: forks share it
  int priority() const { return info_.priority; }
  const std::string& tenant() const { return info_.tenant; }
  // Whose share of the server the sequence takes.
  const Principal& principal() const { return info_.principal; }
  const std::string& client() const { return info_.principal.name; }
  // The name of its part among the parts of all clients.
  const std::string& part() const { return part_; }
  Clock::time_point deadline() const { return info_.deadline; }
  const EventStream& stream() const { return *stream_; }

  // Whether the sequence can use no step now, because its reader or its input is late.
  bool idle() const { return stream_->Full() || starved_since().has_value(); }

  // --- before a step ---

  // Number of tokens that the next step may process; 0 while the sequence waits for input. A
  // decoding sequence may add at most max_drafts draft tokens. May end the sequence (input complete
  // or invalid).
  virtual int64_t ReadyTokens(int64_t max_drafts) = 0;
  // Whether the sequence processes one sampled token (and drafts) a step.
  virtual bool decoding() const = 0;
  // The time since which the sequence waits for input; nullopt while it does not wait.
  virtual std::optional<Clock::time_point> starved_since() const { return std::nullopt; }
  // Whether the sequence waits for the mask of its grammar: ReadyTokens is to be called again soon.
  virtual bool awaits_mask() const { return false; }
  // Number of known input tokens that are not processed yet.
  virtual int64_t UnprocessedInput() const = 0;
  // Number of tokens, as far as known, for which the state needs memory in the end.
  virtual int64_t StateTokens() const = 0;
  // Number of them that are known now: in the state, or to be processed.
  virtual int64_t KnownTokens() const { return StateTokens(); }
  // Returns the state that the sequence starts from; null: the empty one. Called when the sequence
  // gets its first slot, and when it gets one after its state was dropped.
  virtual std::shared_ptr<const SavedState> Begin() { return nullptr; }
  // Called when `state` has become that state; may truncate it.
  virtual void OnLoaded(SequenceState* /*state*/) {}

  // --- a state that is dropped: its tokens are processed again, which gives the same bits ---

  // Number of tokens to process again if the state is dropped; nullopt: the sequence no longer has
  // these tokens.
  virtual std::optional<int64_t> DropCost() const { return std::nullopt; }
  // The state is dropped. The sequence starts again from what Begin returns, or, if `to_source`,
  // from its ForkSource.
  virtual void OnDropped(bool /*to_source*/) {}
  // Number of processed tokens that the state lacks since it was dropped.
  virtual int64_t missing() const { return 0; }

  // --- a step: a segment of n <= ReadyTokens() tokens ---

  // The tokens of the segment. Valid until OnSegment.
  virtual std::span<const int32_t> NextTokens(int64_t n) const = 0;
  // The rows of the segment whose logits the sequence needs.
  virtual OutputRows OutputRowsOf(int64_t n) const = 0;
  virtual bool needs_log_sum_exp() const = 0;
  // Called when the step begins: starts the work that other threads do beside it.
  virtual void PrepareRows(int64_t /*n*/) {}
  // If the model samples rows: makes the query for row `row`. Returns false if the sequence needs
  // the logits of the row.
  virtual bool MakeSampleQuery(int64_t /*row*/, SampleQuery* /*query*/) const { return false; }
  // The slow part of OnRow. Called in order for all rows of the sequence in a batch of logits,
  // before the first OnRow, by a thread of the pool, while other threads do the same for other
  // sequences. `result` is the result of the row's query; null if the logits [vocab_size] were
  // computed instead.
  virtual void SampleRow(int64_t /*row*/, std::span<const float> /*logits*/, float /*log_sum_exp*/,
                         const SampleResult* /*result*/, SamplerScratch* /*scratch*/) {}
  // Called when the step begins and when its rows are processed: times a chunk of the prompt, if
  // the request asks for that.
  void OnStepBegins(int64_t n);
  void OnStepEnds();
  // Called for each needed row of the segment, in order. `logits` is empty if SampleRow had a
  // result; log_sum_exp is valid only with needs_log_sum_exp().
  virtual void OnRow(int64_t row, std::span<const float> logits, float log_sum_exp) = 0;
  // Whether OnFarMass is called, before OnSegment, for each layer with a far part: rows [n, heads].
  virtual bool wants_far_mass() const { return false; }
  virtual void OnFarMass(int /*layer*/, std::span<const float> /*rows*/) {}
  // Called after the step. Returns how many tokens of the segment are accepted; the state is
  // truncated after them, which removes rejected drafts.
  virtual int64_t OnSegment(int64_t n) = 0;
  // Called after OnSegment with the state after the accepted tokens. The sequence may have ended.
  virtual void OnState(const SequenceState& /*state*/) {}
  // Whether the state is being saved: for the prefix cache, or because the sequence has ended with
  // a snapshot. While it is, the sequence takes part in no step and keeps its state.
  virtual bool storing() const { return false; }
  // Saves a part of the state, on the threads of `pool` (null: on this thread).
  virtual void StoreState(const SequenceState& /*state*/, ThreadPool* /*pool*/) {}
  // Returns the other choices of the request, once, when this sequence has processed the tokens
  // that they share. Each continues from a copy of its state.
  virtual std::vector<std::unique_ptr<Sequence>> TakeForks() { return {}; }
  // Whether TakeForks will return some.
  virtual bool will_fork() const { return false; }
  // Number of slots that the request can use at once: one for each choice.
  int slots() const { return group_ == nullptr ? 1 : group_->size(); }

  // --- life ---

  // Called when the sequence gets a slot. The first slot counts; a fork counts that of its parent.
  void OnAdmitted();
  bool admitted() const { return admitted_.has_value(); }
  // Pushes a ProgressEvent if the last one is a second old.
  void MaybeReportProgress();
  // Ends the sequence; the first call counts. The scheduler then removes the sequence and calls
  // PushFinish.
  void End(FinishReason reason, Status status);
  bool ended() const { return finish_.has_value(); }
  // Ends the sequence with a snapshot that another replica continues. Returns false, and does
  // nothing, for a sequence that cannot be continued.
  virtual bool Migrate() { return false; }
  // Ends the sequence with an error in place of the end that it has: its state cannot be saved.
  void EndInstead(Status status);
  // Called when the sequence has ended and is no longer storing.
  virtual void OnLeaving() {}
  // Requires ended().
  const FinishEvent& finish() const { return *finish_; }
  // Whether PushFinish will end the request, and not only one of several choices.
  bool last_of_request() const { return group_ == nullptr || group_->last_alive(); }
  // Pushes the FinishEvent. Called once.
  void PushFinish();

 protected:
  // Makes a fork: one more choice of the parent's request.
  Sequence(const Sequence& parent, int choice);
  // Makes this sequence the first of several choices.
  void Group(int n, int best_of, std::vector<MigratedChoice> before) {
    group_ = std::make_shared<ChoiceGroup>(stream_, n, best_of, std::move(before));
  }
  ChoiceGroup* group() const { return group_.get(); }
  const SequenceContext& context() const { return context_; }
  void Push(Event event);
  // Called when the last input token was processed and decoding begins.
  void MarkPrefillDone();
  void MarkFirstToken();

  // nullopt when prefill is done.
  virtual std::optional<ProgressEvent> Progress() const = 0;
  // Sets text, matched_stop, stop_token, seed, usage, logprob_sum, cache_miss and snapshot.
  virtual void FillFinish(FinishEvent* finish) = 0;

 private:
  const SequenceContext& context_;
  const RequestId id_;
  const RequestInfo info_;
  const std::string part_;
  const std::shared_ptr<EventStream> stream_;
  std::shared_ptr<ChoiceGroup> group_;  // null: the only choice
  const int choice_ = 0;

  std::optional<Clock::time_point> admitted_;
  std::optional<Clock::time_point> prefill_done_;
  std::optional<Clock::time_point> first_token_;
  Clock::time_point last_progress_;
  std::optional<Clock::time_point> chunk_start_;  // set during a step with a chunk that is timed
  int64_t chunk_tokens_ = 0;
  ChunkTimes chunk_times_;
  std::optional<FinishEvent> finish_;
};

}  // namespace polysketch
