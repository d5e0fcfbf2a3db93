#include "server/convert/convert.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>

#include "engine/sampler/sampling_params.h"
#include "server/convert/status_map.h"

namespace polysketch {
namespace {

constexpr int kMaxCachePoints = 64;
constexpr size_t kMaxSaltBytes = 256;
constexpr int kMaxForks = 64;

double Seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

void ToProto(const Timings& timings, v1::Timings* out) {
  out->set_queue_seconds(Seconds(timings.queue));
  out->set_prefill_seconds(Seconds(timings.prefill));
  out->set_decode_seconds(Seconds(timings.decode));
  out->set_first_token_seconds(Seconds(timings.first_token));
  out->set_total_seconds(Seconds(timings.total));
}

void ToProto(const Usage& usage, v1::Usage* out) {
  out->set_prompt_tokens(usage.prompt_tokens);
  out->set_completion_tokens(usage.completion_tokens);
  out->set_cached_tokens(usage.cached_tokens);
}

// `params`: the defaults.
SamplingParams ToSampling(const v1::Sampling& sampling, SamplingParams params) {
  if (sampling.has_temperature()) params.temperature = sampling.temperature();
  if (sampling.has_top_k()) params.top_k = sampling.top_k();
  if (sampling.has_top_p()) params.top_p = sampling.top_p();
  if (sampling.has_min_p()) params.min_p = sampling.min_p();
  if (sampling.has_repetition_penalty()) params.repetition_penalty = sampling.repetition_penalty();
  if (sampling.has_frequency_penalty()) params.frequency_penalty = sampling.frequency_penalty();
  if (sampling.has_presence_penalty()) params.presence_penalty = sampling.presence_penalty();
  if (sampling.has_seed()) params.seed = sampling.seed();
  return params;
}

// As vLLM: the tokens of the word, and those of the word after a space if they are another sequence
// of as many tokens.
Status AddBadWord(const std::string& field, std::string_view word, const Tokenizer& tokenizer,
                  std::vector<std::vector<int32_t>>* sequences) {
  if (word.empty() || word.size() > kMaxBadWordBytes) {
    return InvalidArgument(field, ": expected 1 to ", kMaxBadWordBytes, " bytes, found ",
                           word.size());
  }
  word.remove_prefix(std::min(word.find_first_not_of(" \t\n\r\f\v"), word.size()));
  const auto ids = tokenizer.Encode(word);
  if (!ids.ok()) return Prefixed(field + ": ", ids.status());
  if (ids->empty()) return InvalidArgument(field, ": expected a text, found white space");
  PS_ASSIGN_OR_RETURN(const std::vector<int32_t> spaced, tokenizer.Encode(StrCat(" ", word)));
  sequences->push_back(*ids);
  if (spaced.size() == ids->size() && spaced[0] != (*ids)[0]) sequences->push_back(spaced);
  return Status();
}

// The fields that restrict the tokens of the output.
Status ReadTokenRules(const v1::Sampling& sampling, const RequestRules& rules,
                      SamplingParams* params) {
  params->allowed_token_ids.assign(sampling.allowed_token_ids().begin(),
                                   sampling.allowed_token_ids().end());
  if (sampling.bad_words().empty()) return Status();
  PS_RETURN_IF_ERROR(RequireTokenizer(rules, "sampling.bad_words"));
  if (sampling.bad_words_size() > static_cast<int>(kMaxBadWords)) {
    return InvalidArgument("sampling.bad_words: expected at most ", kMaxBadWords, " texts, found ",
                           sampling.bad_words_size());
  }
  for (int i = 0; i < sampling.bad_words_size(); ++i)
    PS_RETURN_IF_ERROR(AddBadWord(StrCat("sampling.bad_words[", i, "]"), sampling.bad_words(i),
                                  *rules.tokenizer, &params->bad_words));
  return Status();
}

v1::CacheMiss ToProto(CacheMiss miss) {
  static_assert(static_cast<int>(CacheMiss::kNone) == v1::CACHE_MISS_UNSPECIFIED);
  static_assert(static_cast<int>(CacheMiss::kDisabled) == v1::CACHE_MISS_DISABLED);
  static_assert(static_cast<int>(CacheMiss::kTooShort) == v1::CACHE_MISS_TOO_SHORT);
  static_assert(static_cast<int>(CacheMiss::kNoPrefix) == v1::CACHE_MISS_NO_PREFIX);
  return static_cast<v1::CacheMiss>(miss);
}

v1::FinishReason ToProto(FinishReason reason) {
  if (reason == FinishReason::kMigrated) return v1::FINISH_REASON_MIGRATED;
  return reason == FinishReason::kLength ? v1::FINISH_REASON_LENGTH : v1::FINISH_REASON_STOP;
}

// What the ends of a choice and of a request have in common.
template <typename Event, typename Finish>
void SetEnd(const Event& event, Finish* finish) {
  finish->set_text(event.text);
  finish->set_reason(ToProto(event.reason));
  finish->set_matched_stop(event.matched_stop);
  if (event.stop_token) finish->set_stop_token(*event.stop_token);
  finish->set_seed(event.seed);
}

}  // namespace

Status RequireTokenizer(const RequestRules& rules, std::string_view field) {
  if (rules.tokenizer != nullptr) return Status();
  return FailedPrecondition(field,
                            ": text needs a tokenizer, and this model has none; use token ids")
      .WithReason(Reason::kTokenizerMissing);
}

Status CheckTokenIds(std::string_view field, std::span<const int32_t> ids, int vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return InvalidArgument(field, "[", i, "]: expected an id in [0, ", vocab_size, "), found ",
                             ids[i]);
    }
  }
  return Status();
}

Result<int> ToPriority(const v1::CompleteRequest& request, int max_priority) {
  const int32_t priority = request.priority();
  if (priority >= -max_priority && priority <= max_priority) return priority;
  if (max_priority == 0) {
    return InvalidArgument(
        "priority: expected 0 (--max-priority, or max_priority of the API key), found ", priority);
  }
  return InvalidArgument("priority: expected ", -max_priority, " to ", max_priority, ", found ",
                         priority);
}

Result<CacheParams> ToCacheParams(const v1::CacheOptions& options) {
  CacheParams params;
  if (options.has_read()) params.read = options.read();
  if (options.has_write()) params.write = options.write();
  if (options.points_size() > kMaxCachePoints) {
    return InvalidArgument("cache.points: expected at most ", kMaxCachePoints, ", found ",
                           options.points_size());
  }
  if (options.salt().size() > kMaxSaltBytes) {
    return InvalidArgument("cache.salt: expected at most ", kMaxSaltBytes, " bytes, found ",
                           options.salt().size());
  }
  params.salt = options.salt();
  int64_t last = 0;
  for (const int64_t point : options.points()) {
    if (point <= last) {
      return InvalidArgument("cache.points: expected increasing numbers above 0, found ", point,
                             " after ", last);
    }
    last = point;
    params.points.push_back(point);
  }
  return params;
}

std::chrono::milliseconds ToTtl(int64_t seconds) {
  constexpr int64_t kMax = int64_t{1} << 40;
  return std::chrono::seconds(std::clamp(seconds, -kMax, kMax));
}

Result<int> ToForkCount(const v1::ForkSessionRequest& request) {
  const int count = request.count() == 0 ? 1 : request.count();
  if (count >= 1 && count <= kMaxForks) return count;
  return InvalidArgument("count: expected 1 to ", kMaxForks, ", found ", count);
}

Result<GenerateParams> ToGenerateParams(const v1::CompleteRequest& request,
                                        const RequestRules& rules) {
  GenerateParams params;
  params.sampling = ToSampling(request.sampling(), rules.sampling);
  for (const auto& [id, bias] : request.sampling().logit_bias()) {
    // The message names the key: a client cannot count the entries of a map.
    if (id < 0 || id >= rules.vocab_size) {
      return InvalidArgument("sampling.logit_bias: expected ids in [0, ", rules.vocab_size,
                             "), found ", id);
    }
    PS_RETURN_IF_ERROR(CheckRange(StrCat("sampling.logit_bias[", id, "]"), bias, kLogitBiasRange));
    params.sampling.logit_bias.emplace_back(id, bias);
  }
  PS_RETURN_IF_ERROR(ReadTokenRules(request.sampling(), rules, &params.sampling));
  params.min_tokens = request.min_tokens();
  if (request.has_max_tokens()) params.max_tokens = request.max_tokens();
  params.stop.assign(request.stop().begin(), request.stop().end());
  params.stop_token_ids.assign(request.stop_token_ids().begin(), request.stop_token_ids().end());
  params.ignore_eos = request.ignore_eos();
  params.include_stop_in_output = request.include_stop_in_output();
  if (request.has_skip_special_tokens()) params.skip_special_tokens = request.skip_special_tokens();
  if (request.has_logprobs()) params.logprobs = request.logprobs();
  params.echo = request.echo();
  params.logprobs_from = request.logprobs_from();
  if (request.has_n()) params.n = request.n();
  params.best_of = request.has_best_of() ? request.best_of() : params.n;
  if (request.has_draft_tokens()) params.draft_tokens = request.draft_tokens();
  if (request.has_structured_output()) {
    PS_ASSIGN_OR_RETURN(params.grammar, ToGrammarSource(request.structured_output()));
  }
  const Status status =
      ValidateGenerate(params, rules.vocab_size, rules.max_new_tokens, rules.tokenizer != nullptr);
  if (status.ok()) return params;
  // The field of an error of ValidateSampling is a field of the message's `sampling`.
  const bool of_sampling = !ValidateSampling(params.sampling, rules.vocab_size).ok();
  return of_sampling ? Prefixed("sampling.", status) : status;
}

void ToProto(const SamplingParams& params, v1::Sampling* sampling) {
  sampling->set_temperature(params.temperature);
  sampling->set_top_k(params.top_k);
  sampling->set_top_p(params.top_p);
  sampling->set_min_p(params.min_p);
  sampling->set_repetition_penalty(params.repetition_penalty);
  sampling->set_frequency_penalty(params.frequency_penalty);
  sampling->set_presence_penalty(params.presence_penalty);
}

void AppendToken(const TokenEvent& event, bool with_logprobs, const Tokenizer* tokenizer,
                 v1::Delta* delta) {
  delta->mutable_text()->append(event.text);
  delta->add_tokens(event.token);
  delta->set_echoed(event.echoed);
  delta->set_choice(event.choice);
  if (!with_logprobs) return;
  v1::TokenLogprob* logprob = delta->add_logprobs();
  if (event.logprob.has_value()) logprob->set_logprob(*event.logprob);
  if (event.rank > 0) logprob->set_rank(event.rank);
  for (const TokenLogprob& likely : event.top) {
    v1::Alternative* alternative = logprob->add_top();
    alternative->set_token(likely.token);
    alternative->set_logprob(likely.logprob);
    if (tokenizer != nullptr) alternative->set_piece(std::string(tokenizer->Piece(likely.token)));
  }
}

void ToProto(const ProgressEvent& event, v1::Progress* progress) {
  progress->set_processed(event.processed);
  progress->set_total(event.total);
}

void ToProto(const ScoreEvent& event, v1::ScoreLogprobs* logprobs) {
  logprobs->set_first(event.first);
  logprobs->mutable_logprobs()->Add(event.logprobs.begin(), event.logprobs.end());
  logprobs->mutable_greedy()->Add(event.greedy.begin(), event.greedy.end());
}

void ToProto(const ChoiceEvent& event, v1::ChoiceFinish* finish) {
  SetEnd(event, finish);
  finish->set_choice(event.choice);
  finish->set_completion_tokens(event.completion_tokens);
  finish->set_logprob_sum(event.logprob_sum);
}

void ToProto(const FinishEvent& event, v1::Finish* finish) {
  SetEnd(event, finish);
  ToProto(event.usage, finish->mutable_usage());
  finish->set_cache_miss(ToProto(event.cache_miss));
  ToProto(event.timings, finish->mutable_timings());
}

void ToProto(const FinishEvent& event, int64_t before, v1::ScoreFinish* finish) {
  const int64_t tokens = event.usage.prompt_tokens - before;
  const int64_t scored = before > 0 ? tokens : tokens - 1;
  finish->set_tokens(tokens);
  finish->set_logprob_sum(event.logprob_sum);
  if (scored > 0)
    finish->set_perplexity(std::exp(-event.logprob_sum / static_cast<double>(scored)));
  ToProto(event.timings, finish->mutable_timings());
  for (const FarMass& range : event.far_mass) {
    v1::FarMass* const far_mass = finish->add_far_mass();
    far_mass->set_layer(range.layer);
    far_mass->set_first(range.first);
    far_mass->set_queries(range.queries);
    far_mass->mutable_shares()->Add(range.shares.begin(), range.shares.end());
  }
}

void ToProto(const FinishEvent& event, v1::AppendResponse* response) {
  ToProto(event.usage, response->mutable_usage());
  response->set_cache_miss(ToProto(event.cache_miss));
}

void ToProto(const SessionInfo& info, v1::Session* session) {
  session->set_session(info.id);
  session->set_tokens(info.tokens);
  session->set_bytes(info.bytes);
  session->set_durable(info.durable);
  session->set_in_memory(info.in_memory);
  session->set_age_seconds(Seconds(info.age));
  session->set_idle_seconds(Seconds(info.idle));
  session->set_ttl_seconds(Seconds(info.ttl));
}

void ToProto(const SnapshotInfo& info, v1::Snapshot* snapshot) {
  snapshot->set_snapshot(info.key);
  snapshot->set_bytes(info.bytes);
  snapshot->set_age_seconds(Seconds(info.age));
}

}  // namespace polysketch
