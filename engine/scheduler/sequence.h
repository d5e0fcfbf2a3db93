// One request on its way through the engine: which tokens it wants processed next, and what becomes
// of the rows that come back. It knows neither slots nor states nor other sequences (scheduler.h).
//
// Used by the engine thread only.
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

// What all sequences of an engine share; outlives them.
struct SequenceContext {
  const Tokenizer* tokenizer = nullptr;  // null: token ids only
  int vocab_size = 0;
  int eos_id = -1;            // -1: none
  int max_step_tokens = 512;  // most tokens that a sequence gets in one step
  EngineObserver* observer = nullptr;
  std::function<Clock::time_point()> now = [] { return Clock::now(); };
  // Speculative decoding: most draft tokens a step of a request that does not say; 0: none.
  int draft_tokens = 0;
  // A drafter for one sequence. Empty: prompt lookup.
  std::function<std::unique_ptr<Drafter>()> new_drafter = {};
  PrefixCache* prefix_cache = nullptr;  // null: none
};

class Sequence {
 public:
  Sequence(const SequenceContext& context, RequestId id, RequestInfo info,
           std::shared_ptr<EventStream> stream);
  virtual ~Sequence() = default;
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  RequestId id() const { return id_; }  // that of the request: its forks have the same
  int priority() const { return info_.priority; }
  const std::string& tenant() const { return info_.tenant; }
  Clock::time_point deadline() const { return info_.deadline; }
  const EventStream& stream() const { return *stream_; }

  // It could use no step now: its reader is behind, or its input.
  bool idle() const { return stream_->Full() || starved_since().has_value(); }

  // --- before a step ---
  // Tokens that it could process now; 0 while it waits for input. May end the sequence (input
  // complete or bad). A decoding one may add drafts: at most max_drafts.
  virtual int64_t ReadyTokens(int64_t max_drafts) = 0;
  // It processes one token a step (and drafts) and somebody waits for each.
  virtual bool decoding() const = 0;
  // Since when it has been waiting for input, if it is.
  virtual std::optional<Clock::time_point> starved_since() const { return std::nullopt; }
  // Tokens of its input, as far as known, that are still to be processed.
  virtual int64_t UnreadTokens() const = 0;
  // Positions that its state must be able to hold, as far as known.
  virtual int64_t StateTokens() const = 0;

  // It gets its state, which is empty: makes it what it begins with.
  virtual Status Begin(SequenceState* /*state*/) { return Status(); }

  // --- a step: a segment of n <= ReadyTokens() tokens ---
  // Valid until OnSegment.
  virtual std::span<const int32_t> NextTokens(int64_t n) const = 0;
  // The rows whose logits it wants.
  virtual OutputRows WantedRows(int64_t n) const = 0;
  virtual bool needs_log_sum_exp() const = 0;
  // Before the rows come, if they are on a device: what SampleRow and OnRow need to know of row `row`
  // in place of its logits. False: they need the logits.
  virtual bool MakeSampleQuery(int64_t /*row*/, SampleQuery* /*query*/) const { return false; }
  // The part of OnRow that takes long, of several rows in order before the OnRow of the first. It
  // touches this sequence alone: others do the same on other threads meanwhile. `answer`: to what
  // MakeSampleQuery asked; null when it did not, or could not be answered: the logits are there then.
  virtual void SampleRow(int64_t /*row*/, std::span<const float> /*logits*/, float /*log_sum_exp*/,
                         const SampleResult* /*answer*/, SamplerScratch* /*scratch*/) {}
  // Logits [vocab_size] of row `row` of the segment, empty where there was an answer; rows come in
  // order. log_sum_exp only when needed.
  virtual void OnRow(int64_t row, std::span<const float> logits, float log_sum_exp) = 0;
  // The segment is done, all wanted rows have come. How many of its tokens hold; the state forgets
  // the rest (drafts that were wrong).
  virtual int64_t OnSegment(int64_t n) = 0;
  // The same, with the state behind the tokens that hold; it may have ended.
  virtual void OnState(const SequenceState& /*state*/) {}
  // That state is being stored for others: the sequence neither moves on nor leaves until
  // StoreState, which stores a part of it on the threads of `pool` (null: this one), has done so.
  virtual bool storing() const { return false; }
  virtual void StoreState(const SequenceState& /*state*/, ThreadPool* /*pool*/) {}
  // The other choices of its request, once: when it has processed what they have in common. Each
  // goes on from a copy of its state.
  virtual std::vector<std::unique_ptr<Sequence>> TakeForks() { return {}; }
  // Slots that the request may take at once.
  int places() const { return group_ == nullptr ? 1 : group_->size(); }

  // --- life ---
  // It has a slot for the first time (a fork had one as part of its parent).
  void OnAdmitted();
  // Pushes a ProgressEvent when a second has passed since the last.
  void MaybeReportProgress();
  // The first end counts; the scheduler then takes it out and calls PushFinish.
  void End(FinishReason reason, Status status);
  bool ended() const { return finish_.has_value(); }
  // Ends it with a snapshot from which another replica goes on. False: this kind has none.
  virtual bool Migrate() { return false; }
  // It has ended and leaves its state; null when it was never admitted.
  virtual void OnLeaving(const SequenceState* /*state*/) {}
  // Once ended.
  const FinishEvent& finish() const { return *finish_; }
  // PushFinish will end the request, not one of several choices.
  bool last_of_request() const { return group_ == nullptr || group_->last_alive(); }
  // The FinishEvent, once.
  void PushFinish();

 protected:
  // A fork: one more choice of the parent's request.
  Sequence(const Sequence& parent, int choice);
  // Makes this the first of several choices.
  void Group(int n, int best_of, std::vector<MigratedChoice> before) {
    group_ = std::make_shared<ChoiceGroup>(stream_, n, best_of, std::move(before));
  }
  ChoiceGroup* group() const { return group_.get(); }
  const SequenceContext& context() const { return context_; }
  const RequestInfo& info() const { return info_; }
  void Push(Event event);
  // The last prompt token has been processed: what follows is decoding.
  void MarkPrefillDone();
  void MarkFirstToken();

  // Processed of total prompt tokens (0: not known yet); none when no longer in prefill.
  virtual std::optional<ProgressEvent> Progress() const = 0;
  // Fills in text, matched_stop, seed, usage, logprob_sum.
  virtual void FillFinish(FinishEvent* finish) = 0;

 private:
  const SequenceContext& context_;
  const RequestId id_;
  const RequestInfo info_;
  const std::shared_ptr<EventStream> stream_;
  std::shared_ptr<ChoiceGroup> group_;  // null: the only choice
  const int choice_ = 0;

  std::optional<Clock::time_point> admitted_;
  std::optional<Clock::time_point> prefill_done_;
  std::optional<Clock::time_point> first_token_;
  Clock::time_point last_progress_;
  std::optional<FinishEvent> finish_;
};

}  // namespace polysketch
