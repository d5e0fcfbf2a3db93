#include "engine/scheduler/generate_sequence.h"

#include <algorithm>
#include <utility>

#include "engine/sampler/logprobs.h"
#include "engine/sampler/random.h"

namespace polysketch {
namespace {

// How long a step waits for a mask that is not there when its logits are.
constexpr std::chrono::milliseconds kMaskPatience{5};
// How long a migration waits for one.
constexpr std::chrono::milliseconds kMigrationPatience{500};

bool Resumes(const GenerateRequest& request) {
  return request.start != nullptr && request.start->generation.has_value();
}

Generation GenerationOf(const GenerateRequest& request, int64_t max_tokens, uint64_t seed) {
  if (Resumes(request)) return *request.start->generation;
  Generation generation;
  generation.params = request.params;
  generation.params.logprobs_from = 0;  // PromptEcho knows it
  generation.max_tokens = max_tokens;
  generation.seed = seed;
  generation.client_start = request.client_start;
  return generation;
}

// Index of the first input token that an echo returns: the tokens before it precede the prompt, or
// were returned before a migration.
int64_t EchoStart(const GenerateRequest& request) {
  if (request.start == nullptr) return 0;
  return Resumes(request) ? request.start->generation->echoed : std::ssize(request.start->pending);
}

// Index of the first input token that an echo returns with a log-probability; kNever: none.
int64_t ScoredFrom(const GenerateRequest& request) {
  if (Resumes(request)) {
    const int64_t from = request.start->generation->scored_from;
    return from < std::ssize(request.start->pending) ? from : PromptEcho::kNever;
  }
  const int64_t from = request.params.logprobs_from;
  return from < std::ssize(request.prompt) ? EchoStart(request) + from : PromptEcho::kNever;
}

// The name of a tenant has no NUL.
std::string SaltOf(const std::string& tenant, const std::string& salt) {
  return salt.empty() ? tenant : StrCat(tenant, std::string_view("\0", 1), salt);
}

Generation ForkOf(Generation generation, int choice) {
  // The first choice keeps the request's seed, so that it generates the tokens of n = 1.
  generation.seed = MixBits(generation.seed + static_cast<uint64_t>(choice));
  return generation;
}

Sampler NewSampler(const Generation& generation, const TokenHistory& history,
                   const SequenceContext& context) {
  const GenerateParams& params = generation.params;
  std::vector<int32_t> seen;
  history.seen.ForEach([&](int32_t token) { seen.push_back(token); });
  Sampler sampler(params.sampling, generation.seed, context.vocab_size, seen);
  std::vector<int32_t> ends = params.stop_token_ids;
  if (!params.ignore_eos) ends.insert(ends.end(), context.eos_ids.begin(), context.eos_ids.end());
  if (params.min_tokens > 0) sampler.SetMinimum(params.min_tokens, std::move(ends));
  return sampler;
}

}  // namespace

GenerateSequence::GenerateSequence(const SequenceContext& context, RequestId id,
                                   GenerateRequest request, int64_t max_tokens, uint64_t seed,
                                   std::shared_ptr<EventStream> stream)
    : Sequence(context, id, std::move(request.info), std::move(stream)),
      generation_(GenerationOf(request, max_tokens, seed)),
      keep_(request.keep),
      migrates_(request.migrates),
      past_(request.start.get(), Resumes(request) ? std::span<const int32_t>() : request.prompt,
            context.vocab_size),
      sampler_(NewSampler(generation_, past_.history(), context)),
      grammar_(std::move(request.grammar)),
      echo_(params(), EchoStart(request), ScoredFrom(request)),
      drafts_(context, params().draft_tokens.value_or(context.draft_tokens)),
      text_(context.tokenizer, params()) {
  const Snapshot* start = request.start.get();
  if (Resumes(request)) {
    sampler_.Restore(static_cast<uint64_t>(generation_.generated), generation_.counts,
                     generation_.output);
    text_.Restore(generation_);
  } else {
    generation_.cached_tokens = past_.start_position();
    generation_.prompt_tokens = past_.start_position() + input_size();
    // With echo the prompt is part of the text.
    const TokenHistory before = start == nullptr ? TokenHistory() : start->history;
    text_.Start(params().echo ? before : past_.history());
  }
  StartMasks();
  if (params().best_of > 1) {
    Group(params().n, params().best_of, generation_.choices);
    forks_due_ = true;
  }
  if (start == nullptr) {
    prefix_.emplace(context.prefix_cache, request.cache, SaltOf(tenant(), request.cache.salt),
                    principal(), prefill_size(), echo_.scored_from() - 1);
  }
}

GenerateSequence::GenerateSequence(const GenerateSequence& parent, int choice)
    : Sequence(parent, choice),
      generation_(ForkOf(parent.generation_, choice)),
      keep_(false),
      migrates_(parent.migrates_),
      past_(parent.past_),
      sampler_(NewSampler(generation_, past_.history(), context())),
      grammar_(parent.grammar_),
      echo_(params(), input_size(), input_size()),  // the first choice returns the prompt
      drafts_(context(), params().draft_tokens.value_or(context().draft_tokens)),
      text_(context().tokenizer, params()),
      processed_(parent.processed_),
      forked_at_(parent.processed_) {
  text_.Start(past_.history());
  StartMasks();
}

void GenerateSequence::StartMasks() {
  if (grammar_ == nullptr) return;
  bool begins_text = context().tokenizer->StripsLeadingSpace();
  past_.history().seen.ForEach(
      [&](int32_t token) { begins_text &= context().tokenizer->IsControl(token); });
  masks_.emplace(grammar_, begins_text);
  for (const int32_t token : generation_.output) masks_->Accept(token);
}

std::shared_ptr<const SavedState> GenerateSequence::Begin() {
  if (!prefix_) return past_.state();
  return missing_ > 0 ? prefix_->BeginAgain(past_.input(), missing_)
                      : prefix_->Begin(past_.input());
}

void GenerateSequence::OnDropped(bool to_source) {
  missing_ = processed_ - (to_source ? forked_at_ : 0);
  drafts_.Forget(past_.output());
}

void GenerateSequence::OnLoaded(SequenceState* state) {
  if (!prefix_) return;
  prefix_->OnLoaded(state);
  if (missing_ > 0) {
    missing_ = processed_ - state->position();
    return;
  }
  processed_ = generation_.cached_tokens = state->position();
  // Echo them now: a snapshot holds only the tokens that are not in its state.
  EchoUpTo(processed_);
}

std::vector<std::unique_ptr<Sequence>> GenerateSequence::TakeForks() {
  std::vector<std::unique_ptr<Sequence>> forks;
  if (!forks_due_ || ended() || missing_ > 0 || processed_ < prefill_size()) return forks;
  forks_due_ = false;
  forked_at_ = processed_;
  EchoUpTo(input_size());  // before any token of a fork
  Generation generation = SaveGeneration();
  generation.echoed = echo_.next();
  group()->Part(
      [past = past_, generation = std::move(generation)] { return past.Beginning(generation); });
  for (int choice = 1; choice < params().best_of; ++choice) {
    forks.emplace_back(new GenerateSequence(*this, choice));
  }
  return forks;
}

int64_t GenerateSequence::ReadyTokens(int64_t max_drafts) {
  if (missing_ > 0)
    return std::min<int64_t>(missing_, std::ssize(past_.From(processed_ - missing_)));
  if (!decoding()) {
    if (!forks_due_ && processed_ == prefill_size()) {
      FinishPrefill();
      End(FinishReason::kLength, Status());
    }
    const int64_t end = prefix_ ? prefix_->SegmentEnd(processed_, prefill_size()) : prefill_size();
    return end - processed_;
  }
  if (late_ && (!SampleLate(std::chrono::milliseconds(0)) || ended())) return 0;
  if (masks_) max_drafts = std::min(max_drafts, masks_->max_rows() - 1);
  // A step samples one token after those of its segment that are accepted.
  const int64_t left = generation_.max_tokens - generation_.generated;
  drafts_.Propose(last_token_, past_.input(), std::min(max_drafts, left - 1));
  return std::ssize(drafts_.segment());
}

std::span<const int32_t> GenerateSequence::NextTokens(int64_t n) const {
  const auto count = static_cast<size_t>(n);
  if (decoding()) return drafts_.segment().first(count);
  return past_.From(processed_ - missing_).first(count);
}

OutputRows GenerateSequence::OutputRowsOf(int64_t n) const {
  if (missing_ > 0) return OutputRows::kNone;
  if (decoding()) return n == 1 ? OutputRows::kLast : OutputRows::kAll;
  const bool scores = processed_ + n >= echo_.scored_from() && echo_.due(input_size());
  if (scores) return OutputRows::kAll;
  const bool samples = processed_ + n == input_size() && generation_.max_tokens > 0;
  return samples ? OutputRows::kLast : OutputRows::kNone;
}

void GenerateSequence::PrepareRows(int64_t n) {
  const bool samples = decoding() || processed_ + n == input_size();
  if (!masks_ || !samples || generation_.max_tokens == 0) return;
  masks_->Begin(decoding() ? drafts_.segment().subspan(1, static_cast<size_t>(n - 1))
                           : std::span<const int32_t>());
}

bool GenerateSequence::MakeSampleQuery(int64_t row, SampleQuery* query) const {
  if (IsInputRow(row) || generation_.max_tokens == 0 || needs_log_sum_exp() || masks_) return false;
  // The token of a row is used only if all draft tokens before it are sampled too.
  return sampler_.MakeQuery(decoding() ? row : 0, query);
}

void GenerateSequence::SampleRow(int64_t row, std::span<const float> logits, float log_sum_exp,
                                 const SampleResult* result, SamplerScratch* scratch) {
  if (IsInputRow(row) || generation_.max_tokens == 0 || drafts_.diverged()) return;
  if (masks_) {
    const auto patience = was_late_ ? std::chrono::milliseconds(0) : kMaskPatience;
    const auto mask = masks_->Await(MaskRow(row), patience);
    was_late_ = !mask;
    if (mask) {
      drafts_.OnSampled(row, SampleMasked(*mask, logits, log_sum_exp, scratch));
    } else {
      late_ = {MaskRow(row), !decoding(), {logits.begin(), logits.end()}, log_sum_exp};
      drafts_.OnLate();
    }
    return;
  }
  SampledToken sampled{
      result == nullptr ? sampler_.Sample(logits, {}, scratch) : sampler_.Sample(*result, scratch),
      {}};
  if (params().logprobs) sampled.top = TopLogprobs(logits, log_sum_exp, *params().logprobs);
  drafts_.OnSampled(row, std::move(sampled));
}

SampledToken GenerateSequence::SampleMasked(const Result<TokenMask>& mask,
                                            std::span<const float> logits, float log_sum_exp,
                                            SamplerScratch* scratch) {
  if (!mask.ok()) return {mask.status(), {}};
  SampledToken sampled{sampler_.Sample(logits, *mask, scratch), {}};
  if (params().logprobs) sampled.top = TopLogprobs(logits, log_sum_exp, *params().logprobs);
  return sampled;
}

bool GenerateSequence::SampleLate(std::chrono::milliseconds patience) {
  const auto mask = masks_->Await(late_->mask_row, patience);
  if (!mask) return false;
  const LateRow row = *std::exchange(late_, std::nullopt);
  SamplerScratch scratch;
  SampledToken sampled = SampleMasked(*mask, row.logits, row.log_sum_exp, &scratch);
  if (sampled.token.ok()) drafts_.OnSampledLate(*sampled.token);
  if (row.first_token) FinishPrefill();
  Emit(std::move(sampled), row.logits, row.log_sum_exp);
  return true;
}

void GenerateSequence::OnRow(int64_t row, std::span<const float> logits, float log_sum_exp) {
  if (IsInputRow(row)) {
    EchoUpTo(echo_.scored_from());
    const int64_t next = processed_ + row + 1;
    if (next != echo_.next()) return;  // returned before a migration, or without log-probability
    Result<TokenEvent> event =
        echo_.NextScored(past_.input()[static_cast<size_t>(next)], logits, log_sum_exp, &text_);
    if (!event.ok()) return EndBy(event.status());
    return Push(*std::move(event));
  }
  std::optional<SampledToken> sampled = drafts_.TakeSampled();
  if (!sampled) return;
  if (!decoding()) FinishPrefill();
  Emit(*std::move(sampled), logits, log_sum_exp);
}

int64_t GenerateSequence::OnSegment(int64_t n) {
  if (missing_ > 0) {
    missing_ -= n;
    return n;
  }
  const int64_t accepted = drafts_.EndStep(n);
  processed_ += accepted;
  if (ended()) return accepted;
  EchoUpTo(std::min({processed_, input_size(), echo_.scored_from()}));
  if (processed_ >= input_size() && generation_.max_tokens == 0) {
    FinishPrefill();
    End(FinishReason::kLength, Status());
  }
  return accepted;
}

void GenerateSequence::OnState(const SequenceState& state) {
  if (prefix_ && missing_ == 0 && processed_ <= input_size())
    prefix_->OnState(past_.input(), state);
}

bool GenerateSequence::StoresPrefix() const {
  if (!prefix_ || (ended() && !ended_by_itself())) return false;
  return prefix_->storing() || AwaitsEnd();
}

bool GenerateSequence::AwaitsEnd() const {
  // A session keeps the state itself. Of several choices no prompt says which one it continues.
  return ended_by_itself() && !keep_ && group() == nullptr && missing_ == 0 &&
         prefix_->AwaitsEnd(processed_);
}

bool GenerateSequence::LeavesSnapshot() const {
  if (!ended()) return false;
  if (group() != nullptr && !forks_due_) return false;  // the group makes that of all choices
  return finish().reason == FinishReason::kMigrated || (keep_ && ended_by_itself());
}

bool GenerateSequence::storing() const {
  const bool state_is_new = processed_ > missing_ && end_state_ == nullptr;
  return StoresPrefix() || (state_is_new && LeavesSnapshot());
}

void GenerateSequence::StoreState(const SequenceState& state, ThreadPool* pool) {
  if (StoresPrefix()) {
    if (!prefix_->storing()) return prefix_->OnEnd(past_.First(processed_), state);
    return prefix_->Store(state, pool);
  }
  if (!saver_) saver_.emplace(state);
  saver_->Continue(state, pool);
  if (!saver_->done()) return;
  end_state_ = saver_->Take();
  saver_.reset();
}

void GenerateSequence::EchoUpTo(int64_t end) {
  while (echo_.due(end)) {
    Push(echo_.Next(past_.input()[static_cast<size_t>(echo_.next())], &text_));
  }
}

void GenerateSequence::FinishPrefill() {
  MarkPrefillDone();
  EchoUpTo(input_size());
}

void GenerateSequence::EndBy(const Status& status) {
  if (!generation_.client_start) return End(FinishReason::kError, status);
  End(FinishReason::kError,
      InvalidArgument("state: expected values that a model computed, found values after which a "
                      "logit is not finite"));
}

void GenerateSequence::Emit(SampledToken sampled, std::span<const float> logits,
                            float log_sum_exp) {
  if (!sampled.token.ok()) return EndBy(sampled.token.status());
  const Clock::time_point now = context().now();
  if (!last_token_time_) {
    MarkFirstToken();
  } else {
    context().observer->OnTokenGap(now - *last_token_time_);
  }
  last_token_time_ = now;
  last_token_ = *sampled.token;
  ++generation_.generated;
  past_.Append(last_token_);
  if (masks_) {
    masks_->Accept(last_token_);
    generation_.output.push_back(last_token_);
  }

  TokenEvent event;
  event.token = last_token_;
  if (needs_log_sum_exp()) {
    const float logit = logits[static_cast<size_t>(last_token_)];
    if (params().logprobs) event.logprob = logit - log_sum_exp;
    generation_.logprob_sum += static_cast<double>(logit) - log_sum_exp;
  }
  event.top = std::move(sampled.top);
  const bool stop = IsStopToken(last_token_);
  if (!stop || params().include_stop_in_output)
    event.text = text_.Append(last_token_, generation_.generated > params().min_tokens);
  Push(std::move(event));

  const bool is_eos = IsEos(last_token_) && last_token_ == context().eos_ids.front();
  if (stop && !is_eos) stop_token_ = last_token_;
  if (stop || text_.stopped()) End(FinishReason::kStop, Status());
  if (generation_.generated >= generation_.max_tokens) End(FinishReason::kLength, Status());
}

bool GenerateSequence::IsEos(int32_t token) const {
  const std::vector<int32_t>& ids = context().eos_ids;
  return !params().ignore_eos && std::find(ids.begin(), ids.end(), token) != ids.end();
}

bool GenerateSequence::IsStopToken(int32_t token) const {
  const std::vector<int32_t>& ids = params().stop_token_ids;
  return IsEos(token) || std::find(ids.begin(), ids.end(), token) != ids.end();
}

std::optional<ProgressEvent> GenerateSequence::Progress() const {
  if (processed_ >= input_size()) return std::nullopt;
  return ProgressEvent{processed_, input_size()};
}

bool GenerateSequence::Migrate() {
  if (!migrates_) return false;
  if (late_ && !SampleLate(kMigrationPatience)) return false;
  End(FinishReason::kMigrated, Status());
  return true;
}

void GenerateSequence::OnLeaving() {
  if (!LeavesSnapshot()) return;
  auto snapshot = std::make_shared<Snapshot>(past_.Save(end_state_));
  if (finish().reason == FinishReason::kMigrated) snapshot->generation = SaveGeneration();
  snapshot_ = std::move(snapshot);
}

Generation GenerateSequence::SaveGeneration() const {
  Generation saved = generation_;
  const int64_t in_state = processed_ - missing_;
  const int64_t pending = past_.size() - in_state;
  saved.echoed = processed_ >= input_size()
                     ? pending
                     : std::clamp<int64_t>(echo_.next() - in_state, 0, pending);
  // 0 and 1 are the same: no row precedes the first pending token.
  const int64_t unscored = echo_.due(input_size()) ? echo_.scored_from() - in_state : 0;
  saved.scored_from = echo_.scores() && unscored > 1 ? std::min(unscored, pending) : 0;
  saved.counts = sampler_.Counts();
  if (!masks_) saved.output.assign(sampler_.Recent().begin(), sampler_.Recent().end());
  text_.Save(&saved);
  if (group() != nullptr) saved.choices = group()->before();
  return saved;
}

void GenerateSequence::FillFinish(FinishEvent* finish) {
  // The text that a migrated completion holds back is in its snapshot.
  if (finish->reason != FinishReason::kMigrated) finish->text = text_.Finish();
  finish->matched_stop = text_.matched();
  finish->stop_token = stop_token_;
  finish->seed = generation_.seed;
  finish->usage = {.prompt_tokens = generation_.prompt_tokens,
                   .completion_tokens = generation_.generated,
                   .cached_tokens = generation_.cached_tokens};
  finish->logprob_sum = generation_.logprob_sum;
  if (prefix_) finish->cache_miss = prefix_->miss();
  finish->snapshot = std::move(snapshot_);
}

}  // namespace polysketch
