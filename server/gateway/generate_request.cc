#include "server/gateway/generate_request.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "server/convert/status_map.h"

namespace polysketch {
namespace {

constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();

std::optional<int> Alternatives(bool set, int32_t value) {
  return set ? std::optional<int>(value) : std::nullopt;
}

// Fields of the request that this server has no counterpart of.
Status CheckRequest(const vllm_engine::GenerateRequest& request) {
  const std::pair<bool, const char*> absent[] = {
      {request.has_kv_transfer_params(), "kv_transfer_params"},
      {request.has_kv_transfer_params_json(), "kv_transfer_params_json"},
      {request.has_mm_inputs(), "mm_inputs"},
      {request.extra_mm_inputs_size() > 0, "extra_mm_inputs"},
      {request.has_media_refs(), "media_refs"},
      {request.data_parallel_rank() != 0, "data_parallel_rank"},
  };
  for (const auto& [set, field] : absent) {
    if (set) return InvalidArgument(field, ": expected none: this server does not support it");
  }
  if (request.input_case() != vllm_engine::GenerateRequest::INPUT_NOT_SET) return Status();
  return InvalidArgument("input: expected tokenized or text, found neither");
}

Status CheckSampling(const vllm_engine::SamplingParams& params) {
  const std::pair<bool, const char*> absent[] = {
      {params.has_truncate_prompt_tokens(), "truncate_prompt_tokens"},
      {params.has_structural_tag(), "structural_tag"},
  };
  for (const auto& [set, field] : absent) {
    if (set) {
      return InvalidArgument("sampling_params.", field,
                             ": expected none: this server does not support it");
    }
  }
  if (params.logprobs() < 0 || params.prompt_logprobs() < 0) {
    return InvalidArgument(
        "sampling_params.", params.logprobs() < 0 ? "logprobs" : "prompt_logprobs",
        ": expected 0 to 20, found ", std::min(params.logprobs(), params.prompt_logprobs()));
  }
  return Status();
}

// 0 is unset in fields that have no presence: the model's default is used.
void SetSampling(const vllm_engine::SamplingParams& from, v1::Sampling* to) {
  if (from.has_temperature()) to->set_temperature(from.temperature());
  if (from.top_p() != 0) to->set_top_p(from.top_p());
  if (from.top_k() != 0)
    to->set_top_k(static_cast<int32_t>(std::min<uint32_t>(from.top_k(), kMaxInt)));
  if (from.min_p() != 0) to->set_min_p(from.min_p());
  to->set_frequency_penalty(from.frequency_penalty());
  to->set_presence_penalty(from.presence_penalty());
  if (from.repetition_penalty() != 0) to->set_repetition_penalty(from.repetition_penalty());
  if (from.has_seed()) to->set_seed(static_cast<uint32_t>(from.seed()));
  for (const auto& [id, bias] : from.logit_bias()) (*to->mutable_logit_bias())[id] = bias;
}

void SetGrammar(const vllm_engine::SamplingParams& from, v1::CompleteRequest* to) {
  using Params = vllm_engine::SamplingParams;
  if (from.constraint_case() == Params::CONSTRAINT_NOT_SET) return;
  v1::StructuredOutput* output = to->mutable_structured_output();
  if (from.has_json_schema()) output->set_json_schema(from.json_schema());
  if (from.has_json_object()) output->set_json_object(from.json_object());
  if (from.has_regex()) output->set_regex(from.regex());
  if (from.has_grammar()) output->set_ebnf(from.grammar());
  if (from.has_choice()) *output->mutable_choice()->mutable_texts() = from.choice().choices();
}

Status SetCount(const char* field, uint32_t count, int32_t* to) {
  if (count > uint32_t{kMaxInt}) {
    return InvalidArgument("sampling_params.", field, ": expected at most ", kMaxInt, ", found ",
                           count);
  }
  *to = static_cast<int32_t>(count);
  return Status();
}

Status SetStops(const vllm_engine::SamplingParams& from, v1::CompleteRequest* to) {
  *to->mutable_stop() = from.stop();
  for (const uint32_t id : from.stop_token_ids()) {
    int32_t stop = 0;
    PS_RETURN_IF_ERROR(SetCount("stop_token_ids", id, &stop));
    to->add_stop_token_ids(stop);
  }
  to->set_ignore_eos(from.ignore_eos());
  to->set_include_stop_in_output(from.include_stop_str_in_output());
  return Status();
}

Status SetLimits(const vllm_engine::SamplingParams& from, v1::CompleteRequest* to) {
  int32_t count = 0;
  if (from.has_max_tokens()) {
    PS_RETURN_IF_ERROR(SetCount("max_tokens", from.max_tokens(), &count));
    to->set_max_tokens(count);
  }
  PS_RETURN_IF_ERROR(SetCount("min_tokens", from.min_tokens(), &count));
  if (count > 0) to->set_min_tokens(count);
  PS_RETURN_IF_ERROR(SetCount("n", from.n(), &count));
  if (count > 0) to->set_n(count);
  if (from.has_logprobs() || from.has_prompt_logprobs())
    to->set_logprobs(std::max(from.logprobs(), from.prompt_logprobs()));
  to->set_echo(from.has_prompt_logprobs());
  return Status();
}

Status SetPrompt(const vllm_engine::GenerateRequest& request, const RequestRules& rules,
                 v1::Prompt* prompt) {
  if (request.has_text()) {
    prompt->set_text(request.text());
    return Status();
  }
  const auto& ids = request.tokenized().input_ids();
  auto* tokens = prompt->mutable_tokens()->mutable_ids();
  tokens->Reserve(ids.size() + 1);
  const bool has_bos = !ids.empty() && static_cast<int64_t>(ids[0]) == rules.bos_id;
  if (rules.add_bos && !has_bos) tokens->Add(rules.bos_id);
  for (int i = 0; i < ids.size(); ++i) {
    if (static_cast<int64_t>(ids[i]) >= rules.vocab_size) {
      return InvalidArgument("tokenized.input_ids[", i, "]: expected an id in [0, ",
                             rules.vocab_size, "), found ", ids[i]);
    }
    tokens->Add(static_cast<int32_t>(ids[i]));
  }
  return Status();
}

}  // namespace

GenerateForm FormOf(const vllm_engine::GenerateRequest& request) {
  const auto& params = request.sampling_params();
  return {.stream = request.stream(),
          .logprobs = Alternatives(params.has_logprobs(), params.logprobs()),
          .prompt_logprobs = Alternatives(params.has_prompt_logprobs(), params.prompt_logprobs())};
}

Result<v1::CompleteRequest> ToCompleteRequest(const vllm_engine::GenerateRequest& request,
                                              const RequestRules& rules) {
  const auto& params = request.sampling_params();
  PS_RETURN_IF_ERROR(CheckRequest(request));
  PS_RETURN_IF_ERROR(CheckSampling(params));
  v1::CompleteRequest complete;
  SetSampling(params, complete.mutable_sampling());
  SetGrammar(params, &complete);
  PS_RETURN_IF_ERROR(SetStops(params, &complete));
  PS_RETURN_IF_ERROR(SetLimits(params, &complete));
  PS_RETURN_IF_ERROR(SetPrompt(request, rules, complete.mutable_prompt()));
  return complete;
}

Status NameGenerateFields(const Status& status) {
  static const FieldNames kNames = {
      {"sampling.", "sampling_params."},
      {"structured_output.", "sampling_params."},
      {"structured_output", "sampling_params.constraint"},
      {"prompt.tokens", "tokenized.input_ids"},
      {"prompt.text", "text"},
      {"prompt", "tokenized.input_ids"},
      {"include_stop_in_output", "sampling_params.include_stop_str_in_output"},
      {"echo", "sampling_params.prompt_logprobs"},
      {"stop", "sampling_params.stop"},
      {"stop_token_ids", "sampling_params.stop_token_ids"},
      {"max_tokens", "sampling_params.max_tokens"},
      {"min_tokens", "sampling_params.min_tokens"},
      {"logprobs", "sampling_params.logprobs"},
      {"ignore_eos", "sampling_params.ignore_eos"},
      {"n", "sampling_params.n"},
      {"best_of", "sampling_params.n"},
  };
  return status.code() == Code::kInvalidArgument ? Renamed(status, kNames) : status;
}

}  // namespace polysketch
