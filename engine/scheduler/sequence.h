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

#include "engine/observer.h"
#include "engine/request.h"
#include "engine/sampler/sampler.h"
#include "engine/snapshot/snapshot.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {

// What all sequences of an engine share; outlives them.
struct SequenceContext {
  const Tokenizer* tokenizer = nullptr;  // null: token ids only
  int vocab_size = 0;
  int eos_id = -1;            // -1: none
  int max_step_tokens = 512;  // most tokens that a sequence gets in one step
  EngineObserver* observer = nullptr;
  std::function<Clock::time_point()> now = [] { return Clock::now(); };
};

class Sequence {
 public:
  // Hidden rows of a segment whose logits are wanted.
  enum class Rows { kNone, kLast, kAll };

  Sequence(const SequenceContext& context, RequestId id, RequestInfo info,
           std::shared_ptr<EventStream> stream);
  virtual ~Sequence() = default;
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  RequestId id() const { return id_; }
  Clock::time_point deadline() const { return info_.deadline; }
  const EventStream& stream() const { return *stream_; }

  // --- before a step ---
  // Tokens that it could process now; 0 while it waits for input. May end the sequence (input
  // complete or bad).
  virtual int64_t ReadyTokens() = 0;
  // It processes one token a step and somebody waits for each.
  virtual bool decoding() const = 0;
  // Since when it has been waiting for input, if it is.
  virtual std::optional<Clock::time_point> starved_since() const { return std::nullopt; }
  // Positions that its state must be able to hold, as far as known.
  virtual int64_t StateTokens() const = 0;

  // What its state begins as; null: empty.
  virtual const SavedState* start_state() const { return nullptr; }

  // --- a step: a segment of n <= ReadyTokens() tokens ---
  // Valid until OnSegment.
  virtual std::span<const int32_t> NextTokens(int64_t n) const = 0;
  virtual Rows WantedRows(int64_t n) const = 0;
  virtual bool needs_log_sum_exp() const = 0;
  // Logits [vocab_size] of row `row` of the segment; rows come in order. log_sum_exp only when
  // needed.
  virtual void OnRow(int64_t row, std::span<const float> logits, float log_sum_exp,
                     SamplerScratch* scratch) = 0;
  // The segment is done, all wanted rows have come.
  virtual void OnSegment(int64_t n) = 0;

  // --- life ---
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
  // The FinishEvent, once.
  void PushFinish();

 protected:
  const SequenceContext& context() const { return context_; }
  const RequestInfo& info() const { return info_; }
  void Push(Event event) { stream_->Push(std::move(event)); }
  // The last prompt token has been processed: what follows is decoding.
  void MarkPrefillDone();
  void MarkFirstToken();

  // Processed of total prompt tokens (0: not known yet); none when no longer in prefill.
  virtual std::optional<ProgressEvent> Progress() const = 0;
  // Fills in text, matched_stop, seed, usage, logprob_sum.
  virtual void FillFinish(FinishEvent* finish) = 0;
  // Once ended.
  const FinishEvent& finish() const { return *finish_; }

 private:
  const SequenceContext& context_;
  const RequestId id_;
  const RequestInfo info_;
  const std::shared_ptr<EventStream> stream_;

  std::optional<Clock::time_point> admitted_;
  std::optional<Clock::time_point> prefill_done_;
  std::optional<Clock::time_point> first_token_;
  Clock::time_point last_progress_;
  std::optional<FinishEvent> finish_;
};

}  // namespace polysketch
