#include "server/openai/other_parameters.h"

#include <algorithm>

#include "base/bounded_json.h"
#include "base/nearest_word.h"
#include "server/net/ignored_parameters.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kNoSampler = "the server has no such sampler";
constexpr std::string_view kTextOnly = "the model generates text only";
constexpr std::string_view kNoTools = "the server runs no tools";
constexpr std::string_view kOfAnother = "it is a parameter of another endpoint";

constexpr OtherParameter kOthers[] = {
    // OpenAI
    {"metadata"},
    {"prompt_cache_key"},
    {"prompt_cache_options"},
    {"prompt_cache_retention"},
    {"safety_identifier"},
    {"service_tier"},
    {"store"},
    {"user"},
    {"verbosity"},
    {"audio", kTextOnly},
    {"modalities", kTextOnly, R"(["text"])"},
    {"prediction", kTextOnly},
    {"web_search_options", kNoTools},
    {"functions", "the field of tools is `tools`"},
    {"function_call", "the field of tools is `tools`", R"("none" "auto")"},
    {"max_tool_calls", kNoTools},
    {"background", "a response is made while its client waits"},
    {"conversation", "the server has no such parameter"},
    {"truncation", "the server drops no turns", R"("disabled")"},
    {"suffix", "the model continues text and does not fill gaps"},
    // Anthropic
    {"diagnostics"},
    {"inference_geo"},
    {"speed"},
    {"container", kNoTools},
    {"mcp_servers", kNoTools},
    {"context_management", "the server removes nothing from a conversation"},
    // vLLM
    {"chat_template_content_format"},
    {"guided_decoding_backend"},
    {"media_io_kwargs"},
    {"mm_processor_kwargs"},
    {"spaces_between_special_tokens"},
    {"use_beam_search", kNoSampler},
    {"length_penalty", kNoSampler, "1 1.0"},
    {"logits_processors", kNoSampler},
    {"vllm_xargs", kNoSampler},
    {"repetition_detection", kNoSampler},
    {"guided_whitespace_pattern", "the grammar of JSON has its own white space"},
    {"thinking_token_budget", "reasoning has no limit of its own", "-1"},
    {"prompt_embeds", "the prompt is text or token ids"},
    {"kv_transfer_params", "the server has no such parameter"},
    // llama.cpp
    {"id_slot"},
    {"slot_id"},
    {"n_keep"},
    {"n_discard"},
    {"n_cache_reuse"},
    {"timings_per_token"},
    {"return_progress"},
    {"response_fields"},
    {"parse_tool_calls"},
    {"t_max_prompt_ms"},
    {"dry_base"},  // the multiplier says whether it is on
    {"dry_allowed_length"},
    {"dry_penalty_last_n"},
    {"dry_sequence_breakers"},
    {"dynatemp_exponent"},
    {"mirostat_tau"},
    {"mirostat_eta"},
    {"xtc_threshold"},
    {"speculative.n_max"},
    {"speculative.n_min"},
    {"speculative.p_min"},
    {"dry_multiplier", kNoSampler, "0 0.0"},
    {"dynatemp_range", kNoSampler, "0 0.0"},
    {"mirostat", kNoSampler, "0"},
    {"typical_p", kNoSampler, "1 1.0"},
    {"xtc_probability", kNoSampler, "0 0.0"},
    {"top_n_sigma", kNoSampler, "-1 -1.0 0 0.0"},
    // KoboldAI, OpenRouter, text-generation-webui
    {"top_a", kNoSampler, "0 0.0"},
    {"mode"},
    {"models"},
    {"tfs_z", kNoSampler, "1 1.0"},
    {"adaptive_target", kNoSampler, "-1 -1.0"},
    {"min_keep", kNoSampler, "0 1"},
    {"samplers", "the order of samplers is fixed"},
    {"penalize_nl", kNoSampler},
    {"t_max_predict_ms", "an output has no limit of time", "0 -1"},
    {"n_indent", kNoSampler, "0"},
    {"post_sampling_probs", "log-probabilities are those of the model"},
    {"n_probs", "the field of log-probabilities is `logprobs`", "0"},
    {"grammar_lazy", "a grammar binds from the first token"},
    {"grammar_triggers", "a grammar binds from the first token"},
    {"lora", "the server has no adapters"},
    {"image_data", "the model reads text only"},
    {"input_prefix", "the model continues text and does not fill gaps"},
    {"input_suffix", "the model continues text and does not fill gaps"},
    {"input_extra", "the model continues text and does not fill gaps"},
    // Where an endpoint does not read them.
    {"best_of", kOfAnother, "1"},
    {"add_special_tokens", kOfAnother, "true"},
    {"chat_template", kOfAnother},
    {"documents", kOfAnother},
    {"echo", kOfAnother},
    {"input", kOfAnother},
    {"instructions", kOfAnother},
    {"max_completion_tokens", kOfAnother},
    {"max_output_tokens", kOfAnother},
    {"max_tokens", kOfAnother},
    {"messages", kOfAnother},
    {"n", kOfAnother, "1"},
    {"n_predict", kOfAnother, "-1"},
    {"logprobs", kOfAnother},
    {"parallel_tool_calls", kOfAnother, "true"},
    {"previous_response_id", kOfAnother},
    {"prompt_logprobs", kOfAnother},
    {"prompt", kOfAnother},
    {"response_format", kOfAnother},
    {"return_token_ids", kOfAnother},
    {"return_tokens_as_token_ids", kOfAnother},
    {"truncate_prompt_tokens", kOfAnother},
    {"resume_token", kOfAnother},
    {"session", kOfAnother},
    {"stop_sequences", kOfAnother},
    {"system", kOfAnother},
    {"text", kOfAnother},
    {"tool_choice", kOfAnother, R"("none" "auto")"},
    {"tools", kOfAnother},
};

bool IsOff(const Json& value, std::string_view off) {
  if (value == false || (value.is_structured() && value.empty())) return true;
  if (value.is_string() && value.get_ref<const std::string&>().empty()) return true;
  while (!off.empty()) {
    const std::string_view one = off.substr(0, off.find(' '));
    if (value == Json::parse(one)) return true;
    off.remove_prefix(std::min(off.size(), one.size() + 1));
  }
  return false;
}

// "messages[3].name" as "messages[].name": the names that are counted are few.
std::string WithoutIndices(const std::string& name) {
  std::string text;
  bool within = false;
  for (const char c : name) {
    within = within && c != ']';
    if (!within) text += c;
    within = within || c == '[';
  }
  return text;
}

}  // namespace

std::span<const OtherParameter> OtherParameters() { return kOthers; }

Status CheckIgnored(const std::string& prefix, const std::string& name) {
  if (StrictParameters())
    return InvalidArgument(prefix, name,
                           ": expected a parameter with an effect, found one that the server does "
                           "not read (--strict-parameters)");
  CountIgnoredParameter(WithoutIndices(prefix + name));
  return Status();
}

Status CheckUnread(const std::string& prefix, const std::string& name, const Json& value,
                   const std::unordered_set<std::string>& known) {
  const auto other = std::ranges::find(kOthers, name, &OtherParameter::name);
  const bool in_table = prefix.empty() && other != std::end(kOthers);
  if (in_table && !other->refused.empty()) {
    if (IsOff(value, other->off)) return Status();
    return InvalidArgument(name, ": expected none: ", other->refused);
  }
  if (StrictParameters()) return CheckIgnored(prefix, name);
  const std::string near = in_table ? "" : NearestWord(name, {known.begin(), known.end()});
  if (!near.empty())
    return InvalidArgument(prefix, name,
                           ": expected a field of the API, found an unknown one: ", near,
                           " was perhaps meant");
  return CheckIgnored(prefix, name);
}

}  // namespace polysketch
