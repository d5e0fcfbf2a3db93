#include "engine/scheduler/generate_sequence.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "engine/sampler/logprobs.h"

namespace polysketch {

GenerateSequence::GenerateSequence(const SequenceContext& context, RequestId id,
                                   GenerateRequest request, int64_t max_tokens, uint64_t seed,
                                   std::shared_ptr<EventStream> stream)
    : Sequence(context, id, std::move(request.info), std::move(stream)),
      params_(std::move(request.params)),
      max_tokens_(max_tokens),
      seed_(seed),
      keep_(request.keep),
      stop_matcher_(params_.stop, params_.include_stop_in_output),
      seen_(context.vocab_size) {
  const Snapshot* start = request.start.get();
  if (start != nullptr) {
    start_state_ = start->state;
    seen_ = start->seen;
    tail_ = start->tail;
    prompt_ = start->pending;
  }
  const bool resumes = start != nullptr && start->generation.has_value();
  if (!resumes) Begin(request.prompt);
  std::vector<int32_t> history;
  seen_.ForEach([&](int32_t token) { history.push_back(token); });
  sampler_.emplace(params_.sampling, seed, context.vocab_size, history);
  if (resumes) Resume(*start->generation);
}

void GenerateSequence::Begin(std::span<const int32_t> prompt) {
  if (params_.echo) StartDecoder();  // behind the history; the prompt is part of the text
  seen_.Insert(prompt);
  tail_ = LastTokens(tail_, prompt, Snapshot::kTail);
  if (!params_.echo) StartDecoder();
  echoed_ = prompt_size();
  prompt_.insert(prompt_.end(), prompt.begin(), prompt.end());
  cached_tokens_ = start_position();
  prompt_tokens_ = start_position() + prompt_size();
}

void GenerateSequence::Resume(const Generation& generation) {
  prompt_tokens_ = generation.prompt_tokens;
  cached_tokens_ = generation.cached_tokens;
  generated_ = generation.generated;
  echoed_ = generation.echoed;
  sampler_->Restore(static_cast<uint64_t>(generated_), generation.counts);
  // What the matcher holds is all that its state depends on.
  std::string out;
  PS_CHECK(!stop_matcher_.Append(generation.held, &out) && out.empty()) << "a bad snapshot";
  if (context().tokenizer == nullptr) return;
  decoder_.emplace(context().tokenizer, /*continued=*/true);
  decoder_->Restore(generation.decoder);
}

void GenerateSequence::StartDecoder() {
  const Tokenizer* tokenizer = context().tokenizer;
  if (tokenizer == nullptr) return;
  // The text continues another unless what is before it is empty but for control ids such as BOS.
  bool continued = false;
  seen_.ForEach([&](int32_t token) { continued |= !tokenizer->IsControl(token); });
  decoder_.emplace(tokenizer, continued);
  // Byte pieces may end inside a character, of at most 3 bytes: the text then begins with the whole
  // of it.
  for (const int32_t token : tail_) decoder_->Append(token);
}

int64_t GenerateSequence::ReadyTokens() {
  if (decoding()) return 1;
  // Nothing is sampled behind a kept prompt: its last token stays for the continuation to run.
  const int64_t size = prompt_size() - (keep_ && max_tokens_ == 0 ? 1 : 0);
  if (processed_ == size) {
    MarkPrefillDone();
    EchoUpTo(prompt_size());
    End(FinishReason::kLength, Status());
  }
  return size - processed_;
}

std::span<const int32_t> GenerateSequence::NextTokens(int64_t n) const {
  if (decoding()) return {&last_token_, 1};
  return std::span(prompt_).subspan(static_cast<size_t>(processed_), static_cast<size_t>(n));
}

Sequence::Rows GenerateSequence::WantedRows(int64_t n) const {
  if (decoding()) return Rows::kLast;
  if (params_.echo && params_.logprobs) return Rows::kAll;
  return processed_ + n == prompt_size() && max_tokens_ > 0 ? Rows::kLast : Rows::kNone;
}

void GenerateSequence::OnRow(int64_t row, std::span<const float> logits, float log_sum_exp,
                             SamplerScratch* scratch) {
  const int64_t position = decoding() ? processed_ : processed_ + row;
  if (position + 1 < prompt_size()) {
    // The first prompt token has no row before it.
    if (echoed_ == 0) EchoUpTo(1);
    if (position + 1 == echoed_) EchoScored(logits, log_sum_exp);  // not of an earlier request
  } else if (max_tokens_ > 0) {
    MarkPrefillDone();
    EchoUpTo(prompt_size());
    SampleToken(logits, log_sum_exp, scratch);
  }
}

void GenerateSequence::OnSegment(int64_t n) {
  processed_ += n;
  if (!(params_.echo && params_.logprobs)) EchoUpTo(std::min(processed_, prompt_size()));
  if (processed_ >= prompt_size() && max_tokens_ == 0) {
    MarkPrefillDone();
    EchoUpTo(prompt_size());
    End(FinishReason::kLength, Status());
  }
}

void GenerateSequence::EchoUpTo(int64_t end) {
  if (!params_.echo) return;
  while (echoed_ < end) {
    TokenEvent event;
    event.token = prompt_[static_cast<size_t>(echoed_)];
    PushEcho(std::move(event));
  }
}

void GenerateSequence::EchoScored(std::span<const float> logits, float log_sum_exp) {
  if (!std::isfinite(log_sum_exp)) {
    return End(FinishReason::kError,
               Internal("the model gave a logit that is not finite at token ", echoed_ - 1));
  }
  TokenEvent event;
  event.token = prompt_[static_cast<size_t>(echoed_)];
  AddLogprobs(logits, log_sum_exp, &event);
  PushEcho(std::move(event));
}

void GenerateSequence::PushEcho(TokenEvent event) {
  event.echoed = true;
  if (decoder_) event.text = decoder_->Append(event.token);
  ++echoed_;
  Push(std::move(event));
}

void GenerateSequence::SampleToken(std::span<const float> logits, float log_sum_exp,
                                   SamplerScratch* scratch) {
  const Result<int32_t> token = sampler_->Sample(logits, scratch);
  if (!token.ok()) return End(FinishReason::kError, token.status());

  const Clock::time_point now = context().now();
  if (!last_token_time_) {
    MarkFirstToken();
  } else {
    context().observer->OnTokenGap(now - *last_token_time_);
  }
  last_token_time_ = now;
  last_token_ = *token;
  ++generated_;
  seen_.Insert(*token);
  tail_ = LastTokens(tail_, {&last_token_, 1}, Snapshot::kTail);

  TokenEvent event;
  event.token = *token;
  AddLogprobs(logits, log_sum_exp, &event);
  const bool stop = IsStopToken(*token);
  if (decoder_ && (!stop || params_.include_stop_in_output))
    event.text = Release(decoder_->Append(*token));
  Push(std::move(event));

  if (stop) End(FinishReason::kStop, Status());
  if (generated_ >= max_tokens_) End(FinishReason::kLength, Status());
}

std::string GenerateSequence::Release(const std::string& text) {
  std::string out;
  if (stop_matcher_.matched().empty() && stop_matcher_.Append(text, &out)) {
    End(FinishReason::kStop, Status());
  }
  return out;
}

bool GenerateSequence::IsStopToken(int32_t token) const {
  if (token == context().eos_id && !params_.ignore_eos) return true;
  const auto& ids = params_.stop_token_ids;
  return std::find(ids.begin(), ids.end(), token) != ids.end();
}

void GenerateSequence::AddLogprobs(std::span<const float> logits, float log_sum_exp,
                                   TokenEvent* event) const {
  if (!params_.logprobs) return;
  event->logprob = logits[static_cast<size_t>(event->token)] - log_sum_exp;
  event->top = TopLogprobs(logits, log_sum_exp, *params_.logprobs);
}

std::optional<ProgressEvent> GenerateSequence::Progress() const {
  if (decoding()) return std::nullopt;
  return ProgressEvent{processed_, prompt_size()};
}

bool GenerateSequence::Migrate() {
  End(FinishReason::kMigrated, Status());
  return true;
}

void GenerateSequence::OnLeaving(const SequenceState* state) {
  const FinishReason reason = finish().reason;
  const bool migrates = reason == FinishReason::kMigrated;
  const bool is_kept = keep_ && (reason == FinishReason::kStop || reason == FinishReason::kLength);
  if (!migrates && !is_kept) return;
  auto snapshot = std::make_shared<Snapshot>();
  // The state knows better than processed_, which leaves out a segment whose row ended this.
  const int64_t processed = state == nullptr ? 0 : state->position() - start_position();
  snapshot->state = processed == 0 ? start_state_ : SavedState::Of(*state);
  if (processed >= prompt_size()) {
    snapshot->pending = {last_token_};
  } else {
    snapshot->pending.assign(prompt_.begin() + processed, prompt_.end());
  }
  snapshot->seen = seen_;
  snapshot->tail = tail_;
  if (migrates) snapshot->generation = StoppedGeneration();
  snapshot_ = std::move(snapshot);
}

Generation GenerateSequence::StoppedGeneration() const {
  Generation generation;
  generation.params = params_;
  generation.max_tokens = max_tokens_;
  generation.seed = seed_;
  generation.prompt_tokens = prompt_tokens_;
  generation.cached_tokens = cached_tokens_;
  generation.generated = generated_;
  generation.echoed = decoding() ? 1 : std::max<int64_t>(0, echoed_ - processed_);
  generation.counts = sampler_->Counts();
  generation.held = stop_matcher_.held();
  if (decoder_) generation.decoder = decoder_->Save();
  return generation;
}

void GenerateSequence::FillFinish(FinishEvent* finish) {
  // What a migrated one holds back goes with its snapshot.
  if (decoder_ && finish->reason != FinishReason::kMigrated) {
    // Bytes that stay incomplete may still complete a stop string that holds U+FFFD.
    finish->text = Release(decoder_->Finish());
    finish->text += stop_matcher_.Finish();
  }
  finish->matched_stop = stop_matcher_.matched();
  finish->seed = seed_;
  finish->usage.prompt_tokens = prompt_tokens_;
  finish->usage.completion_tokens = generated_;
  finish->usage.cached_tokens = cached_tokens_;
  finish->snapshot = std::move(snapshot_);
}

}  // namespace polysketch
