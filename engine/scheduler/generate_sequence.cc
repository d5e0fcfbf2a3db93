#include "engine/scheduler/generate_sequence.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "engine/sampler/logprobs.h"
#include "engine/sampler/random.h"
#include "engine/speculation/ngram_drafter.h"

namespace polysketch {

namespace {

// The first choice has the request's seed, so that it is what n = 1 gives.
uint64_t SeedOf(uint64_t seed, int choice) {
  return choice == 0 ? seed : MixBits(seed + static_cast<uint64_t>(choice));
}

}  // namespace

GenerateSequence::GenerateSequence(const SequenceContext& context, RequestId id,
                                   GenerateRequest request, int64_t max_tokens, uint64_t seed,
                                   std::shared_ptr<EventStream> stream)
    : Sequence(context, id, std::move(request.info), std::move(stream)),
      params_(std::move(request.params)),
      max_tokens_(max_tokens),
      seed_(seed),
      keep_(request.keep),
      stop_matcher_(params_.stop, params_.include_stop_in_output),
      seen_(context.vocab_size),
      draft_length_(params_.draft_tokens.value_or(context.draft_tokens)) {
  const Snapshot* start = request.start.get();
  std::vector<int32_t> pending;
  if (start != nullptr) {
    start_state_ = start->state;
    seen_ = start->seen;
    tail_ = start->tail;
    pending = start->pending;
  }
  const bool resumes = start != nullptr && start->generation.has_value();
  if (!resumes) Follow(request.prompt, &pending);
  prompt_ = std::make_shared<const std::vector<int32_t>>(std::move(pending));
  if (!resumes) {
    cached_tokens_ = start_position();
    prompt_tokens_ = start_position() + prompt_size();
  }
  StartSampler();
  if (resumes) Resume(*start->generation);
  if (params_.best_of > 1) {
    Group(params_.n, params_.best_of,
          resumes ? start->generation->choices : std::vector<MigratedChoice>());
    forks_due_ = true;
  }
  if (start == nullptr) {
    prefix_.emplace(context.prefix_cache, request.cache, tenant(),
                    params_.echo && params_.logprobs.has_value(), prefill_size());
  }
}

Status GenerateSequence::Begin(SequenceState* state) {
  if (start_state_ != nullptr) return state->Load(start_state_->position, start_state_->bytes);
  if (!prefix_) return Status();
  PS_ASSIGN_OR_RETURN(processed_, prefix_->Begin(*prompt_, state));
  cached_tokens_ = processed_;
  // At once: a snapshot knows only the tokens that its state does not.
  if (processed_ > 0) EchoUpTo(processed_);
  return Status();
}

void GenerateSequence::OnState(const SequenceState& state) {
  if (prefix_ && state.position() <= prompt_size()) prefix_->OnState(*prompt_, state);
}

bool GenerateSequence::storing() const {
  if (!prefix_ || !prefix_->storing()) return false;
  if (!ended()) return true;
  return finish().reason == FinishReason::kStop || finish().reason == FinishReason::kLength;
}

void GenerateSequence::StoreState(const SequenceState& state, ThreadPool* pool) {
  prefix_->Store(*prompt_, state, pool);
}

GenerateSequence::GenerateSequence(const GenerateSequence& parent, int choice)
    : Sequence(parent, choice),
      params_(parent.params_),
      max_tokens_(parent.max_tokens_),
      seed_(SeedOf(parent.seed_, choice)),
      keep_(false),
      stop_matcher_(params_.stop, params_.include_stop_in_output),
      start_state_(parent.start_state_),
      prompt_(parent.prompt_),
      seen_(parent.seen_),
      tail_(parent.tail_),
      prompt_tokens_(parent.prompt_tokens_),
      cached_tokens_(parent.cached_tokens_),
      processed_(parent.processed_),
      echoed_(parent.prompt_size()),  // by the first choice
      draft_length_(params_.draft_tokens.value_or(context().draft_tokens)) {
  StartSampler();
  StartDecoder();
}

void GenerateSequence::StartSampler() {
  std::vector<int32_t> history;
  seen_.ForEach([&](int32_t token) { history.push_back(token); });
  sampler_.emplace(params_.sampling, seed_, context().vocab_size, history);
}

void GenerateSequence::Follow(std::span<const int32_t> prompt, std::vector<int32_t>* pending) {
  if (params_.echo) StartDecoder();  // behind the history; the prompt is part of the text
  seen_.Insert(prompt);
  tail_ = LastTokens(tail_, prompt, Snapshot::kTail);
  if (!params_.echo) StartDecoder();
  echoed_ = std::ssize(*pending);
  pending->insert(pending->end(), prompt.begin(), prompt.end());
}

void GenerateSequence::Resume(const Generation& generation) {
  prompt_tokens_ = generation.prompt_tokens;
  cached_tokens_ = generation.cached_tokens;
  generated_ = generation.generated;
  logprob_sum_ = generation.logprob_sum;
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

std::vector<std::unique_ptr<Sequence>> GenerateSequence::TakeForks() {
  std::vector<std::unique_ptr<Sequence>> forks;
  if (!forks_due_ || ended() || processed_ < prefill_size()) return forks;
  forks_due_ = false;
  EchoUpTo(prompt_size());  // before anything that a fork may say
  group()->Part(Beginning());
  for (int choice = 1; choice < params_.best_of; ++choice) {
    forks.emplace_back(new GenerateSequence(*this, choice));
  }
  return forks;
}

int64_t GenerateSequence::ReadyTokens(int64_t max_drafts) {
  if (!decoding()) {
    if (!forks_due_ && processed_ == prefill_size()) {
      MarkPrefillDone();
      EchoUpTo(prompt_size());
      End(FinishReason::kLength, Status());
    }
    return SegmentEnd() - processed_;
  }
  // One token is sampled behind those that hold.
  Draft(std::min({max_drafts, draft_length_.Next(), max_tokens_ - generated_ - 1}));
  return static_cast<int64_t>(next_.size());
}

void GenerateSequence::Draft(int64_t most) {
  next_.assign(1, last_token_);
  if (most <= 0) return;
  if (drafter_ == nullptr) {
    drafter_ = context().new_drafter ? context().new_drafter() : std::make_unique<NgramDrafter>();
    drafter_->Append(*prompt_);
  }
  drafter_->Append(output_);
  output_.clear();
  const std::vector<int32_t> draft = drafter_->Propose(most);
  next_.insert(next_.end(), draft.begin(), draft.end());
}

std::span<const int32_t> GenerateSequence::NextTokens(int64_t n) const {
  if (decoding()) return std::span(next_).first(static_cast<size_t>(n));
  return std::span(*prompt_).subspan(static_cast<size_t>(processed_), static_cast<size_t>(n));
}

OutputRows GenerateSequence::WantedRows(int64_t n) const {
  if (decoding()) return n == 1 ? OutputRows::kLast : OutputRows::kAll;
  if (params_.echo && params_.logprobs && echoed_ < prompt_size()) return OutputRows::kAll;
  return processed_ + n == prompt_size() && max_tokens_ > 0 ? OutputRows::kLast : OutputRows::kNone;
}

bool GenerateSequence::MakeSampleQuery(int64_t row, SampleQuery* query) const {
  if (IsPromptRow(row) || max_tokens_ == 0 || needs_log_sum_exp()) return false;
  // A row counts only if all that were drafted before it are sampled.
  return sampler_->MakeQuery(decoding() ? row : 0, query);
}

void GenerateSequence::SampleRow(int64_t row, std::span<const float> logits, float log_sum_exp,
                                 const SampleResult* answer, SamplerScratch* scratch) {
  if (IsPromptRow(row) || max_tokens_ == 0 || diverged_) return;
  SampledToken sampled{
      answer == nullptr ? sampler_->Sample(logits, scratch) : sampler_->Sample(*answer, scratch),
      {}};
  const auto behind = static_cast<size_t>(row) + 1;
  const bool drafted = decoding() && behind < next_.size();
  diverged_ = !sampled.token.ok() || (drafted && next_[behind] != *sampled.token);
  if (params_.logprobs) sampled.top = TopLogprobs(logits, log_sum_exp, *params_.logprobs);
  sampled_.push_back(std::move(sampled));
}

void GenerateSequence::OnRow(int64_t row, std::span<const float> logits, float log_sum_exp) {
  if (IsPromptRow(row)) {
    // The first prompt token has no row before it.
    if (echoed_ == 0) EchoUpTo(1);
    // Not what an earlier request has had.
    if (processed_ + row + 1 == echoed_) EchoScored(logits, log_sum_exp);
    return;
  }
  if (sampled_.empty()) return;
  if (!decoding()) {
    MarkPrefillDone();
    EchoUpTo(prompt_size());
  }
  ++sampled_rows_;
  SampledToken sampled = std::move(sampled_.front());
  sampled_.pop_front();
  EmitToken(std::move(sampled), logits, log_sum_exp);
}

int64_t GenerateSequence::OnSegment(int64_t n) {
  int64_t kept = n;
  if (decoding()) {
    kept = std::max<int64_t>(sampled_rows_, 1);  // none when the row was not finite
    draft_length_.OnStep(n - 1, kept - 1);
    if (n > 1) context().observer->OnDraft(n - 1, kept - 1);
  }
  processed_ += kept;
  sampled_rows_ = 0;
  sampled_.clear();
  diverged_ = false;
  if (ended()) return kept;
  if (!(params_.echo && params_.logprobs)) EchoUpTo(std::min(processed_, prompt_size()));
  if (processed_ >= prompt_size() && max_tokens_ == 0) {
    MarkPrefillDone();
    EchoUpTo(prompt_size());
    End(FinishReason::kLength, Status());
  }
  return kept;
}

void GenerateSequence::EchoUpTo(int64_t end) {
  if (!params_.echo) return;
  while (echoed_ < end) {
    TokenEvent event;
    event.token = prompt(echoed_);
    PushEcho(std::move(event));
  }
}

void GenerateSequence::EchoScored(std::span<const float> logits, float log_sum_exp) {
  if (!std::isfinite(log_sum_exp)) {
    return End(FinishReason::kError,
               Internal("the model gave a logit that is not finite at token ", echoed_ - 1));
  }
  TokenEvent event;
  event.token = prompt(echoed_);
  event.logprob = logits[static_cast<size_t>(event.token)] - log_sum_exp;
  event.top = TopLogprobs(logits, log_sum_exp, *params_.logprobs);
  PushEcho(std::move(event));
}

void GenerateSequence::PushEcho(TokenEvent event) {
  event.echoed = true;
  if (decoder_) event.text = decoder_->Append(event.token);
  ++echoed_;
  Push(std::move(event));
}

void GenerateSequence::EmitToken(SampledToken sampled, std::span<const float> logits,
                                 float log_sum_exp) {
  if (!sampled.token.ok()) return End(FinishReason::kError, sampled.token.status());
  const int32_t token = *sampled.token;
  const Clock::time_point now = context().now();
  if (!last_token_time_) {
    MarkFirstToken();
  } else {
    context().observer->OnTokenGap(now - *last_token_time_);
  }
  last_token_time_ = now;
  last_token_ = token;
  ++generated_;
  if (draft_length_.most() > 0) output_.push_back(token);
  seen_.Insert(token);
  tail_ = LastTokens(tail_, {&last_token_, 1}, Snapshot::kTail);

  TokenEvent event;
  event.token = token;
  if (needs_log_sum_exp()) {
    const float logit = logits[static_cast<size_t>(token)];
    if (params_.logprobs) event.logprob = logit - log_sum_exp;
    logprob_sum_ += static_cast<double>(logit) - log_sum_exp;
  }
  event.top = std::move(sampled.top);
  const bool stop = IsStopToken(token);
  if (decoder_ && (!stop || params_.include_stop_in_output))
    event.text = Release(decoder_->Append(token));
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
  if (group() != nullptr && !forks_due_) return;  // the group knows what all of them need
  auto snapshot = std::make_shared<Snapshot>();
  const int64_t processed = state == nullptr ? 0 : state->position() - start_position();
  snapshot->state = processed == 0 ? start_state_ : SavedState::Of(*state);
  if (processed >= prompt_size()) {
    snapshot->pending = {last_token_};
  } else {
    snapshot->pending.assign(prompt_->begin() + processed, prompt_->end());
  }
  snapshot->seen = seen_;
  snapshot->tail = tail_;
  if (migrates) snapshot->generation = SaveGeneration();
  snapshot_ = std::move(snapshot);
}

std::function<Snapshot()> GenerateSequence::Beginning() const {
  Generation generation = SaveGeneration();
  generation.echoed = echoed_;
  return [state = start_state_, prompt = prompt_, seen = seen_, tail = tail_,
          generation = std::move(generation)] {
    return Snapshot{state, *prompt, seen, tail, generation};
  };
}

Generation GenerateSequence::SaveGeneration() const {
  Generation generation;
  generation.params = params_;
  generation.max_tokens = max_tokens_;
  generation.seed = seed_;
  generation.prompt_tokens = prompt_tokens_;
  generation.cached_tokens = cached_tokens_;
  generation.generated = generated_;
  generation.logprob_sum = logprob_sum_;
  generation.echoed = decoding() ? 1 : std::max<int64_t>(0, echoed_ - processed_);
  generation.counts = sampler_->Counts();
  generation.held = stop_matcher_.held();
  if (decoder_) generation.decoder = decoder_->Save();
  if (group() != nullptr) generation.choices = group()->before();
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
  finish->logprob_sum = logprob_sum_;
  finish->usage.cached_tokens = cached_tokens_;
  if (prefix_) finish->cache_miss = prefix_->miss();
  finish->snapshot = std::move(snapshot_);
}

}  // namespace polysketch
