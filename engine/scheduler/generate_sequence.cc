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
      prompt_(std::move(request.prompt)),
      params_(std::move(request.params)),
      max_tokens_(max_tokens),
      seed_(seed),
      sampler_(params_.sampling, seed, context.vocab_size, prompt_),
      stop_matcher_(params_.stop, params_.include_stop_in_output) {
  const Tokenizer* tokenizer = context.tokenizer;
  if (tokenizer == nullptr) return;
  // The output continues a text unless the prompt is empty but for control ids such as BOS.
  const bool continued =
      !params_.echo && std::any_of(prompt_.begin(), prompt_.end(),
                                   [&](int32_t token) { return !tokenizer->IsControl(token); });
  decoder_.emplace(tokenizer, continued);
  if (continued) {
    // A prompt of byte pieces may end inside a character, of at most 3 bytes: the output then
    // begins with the whole of it.
    for (size_t i = prompt_.size() - std::min<size_t>(prompt_.size(), 3); i < prompt_.size(); ++i) {
      decoder_->Append(prompt_[i]);
    }
  }
}

int64_t GenerateSequence::ReadyTokens() { return decoding() ? 1 : prompt_size() - processed_; }

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
    EchoScored(logits, log_sum_exp);
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
  const Result<int32_t> token = sampler_.Sample(logits, scratch);
  if (!token.ok()) return End(FinishReason::kError, token.status());

  const Clock::time_point now = context().now();
  if (generated_ == 0) {
    MarkFirstToken();
  } else {
    context().observer->OnTokenGap(now - last_token_time_);
  }
  last_token_time_ = now;
  last_token_ = *token;
  ++generated_;

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

void GenerateSequence::FillFinish(FinishEvent* finish) {
  if (decoder_) {
    // Bytes that stay incomplete may still complete a stop string that holds U+FFFD.
    finish->text = Release(decoder_->Finish());
    finish->text += stop_matcher_.Finish();
  }
  finish->matched_stop = stop_matcher_.matched();
  finish->seed = seed_;
  finish->usage.prompt_tokens = prompt_size();
  finish->usage.completion_tokens = generated_;
}

}  // namespace polysketch
