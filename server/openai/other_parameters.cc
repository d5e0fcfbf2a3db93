#include "server/openai/other_parameters.h"

#include <algorithm>
#include <vector>

#include "base/bounded_json.h"
#include "base/nearest_word.h"
#include "server/net/ignored_parameters.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

// Without an effect here.
constexpr std::string_view kIgnored[] = {
    // OpenAI
    "metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "safety_identifier", "service_tier", "store", "user", "verbosity",
    // Anthropic
    "diagnostics", "inference_geo", "speed",
    // vLLM
    "chat_template_content_format", "guided_decoding_backend", "media_io_kwargs",
    "mm_processor_kwargs", "spaces_between_special_tokens",
    // llama.cpp; of samplers, the multiplier says whether they are on
    "id_slot", "slot_id", "n_keep", "n_discard", "n_cache_reuse", "timings_per_token",
    "return_progress", "response_fields", "parse_tool_calls", "t_max_prompt_ms", "dry_base",
    "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "dynatemp_exponent",
    "mirostat_tau", "mirostat_eta", "xtc_threshold", "speculative.n_max", "speculative.n_min",
    "speculative.p_min",
    // KoboldAI, OpenRouter
    "mode", "models"};

// Of another endpoint, where an endpoint does not read them; more are in kRefused.
constexpr std::string_view kOfOthers[] = {
    // completions and chat completions
    "chat_template", "documents", "echo", "max_completion_tokens", "max_tokens", "messages",
    "logprobs", "prompt_logprobs", "prompt", "response_format", "return_token_ids",
    "return_tokens_as_token_ids", "truncate_prompt_tokens", "resume_token", "session", "tools",
    // responses and messages
    "input", "instructions", "max_output_tokens", "previous_response_id", "text", "stop_sequences",
    "system"};

constexpr std::string_view kNoSampler = "the server has no such sampler";
constexpr std::string_view kTextOnly = "the model generates text only";
constexpr std::string_view kNoTools = "the server runs no tools";
constexpr std::string_view kNoGaps = "the model continues text and does not fill gaps";
constexpr std::string_view kNoParameter = "the server has no such parameter";
constexpr std::string_view kOfAnother = "it is a parameter of another endpoint";

constexpr OtherParameter kRefused[] = {
    // OpenAI
    {"audio", kTextOnly},
    {"modalities", kTextOnly, R"(["text"])"},
    {"prediction", kTextOnly},
    {"web_search_options", kNoTools},
    {"functions", "the field of tools is `tools`"},
    {"function_call", "the field of tools is `tools`", R"("none" "auto")"},
    {"max_tool_calls", kNoTools},
    {"background", "a response is made while its client waits"},
    {"conversation", kNoParameter},
    {"truncation", "the server drops no turns", R"("disabled")"},
    {"suffix", kNoGaps},
    // Anthropic
    {"container", kNoTools},
    {"mcp_servers", kNoTools},
    {"context_management", "the server removes nothing from a conversation"},
    // vLLM
    {"use_beam_search", kNoSampler},
    {"length_penalty", kNoSampler, "1 1.0"},
    {"logits_processors", kNoSampler},
    {"vllm_xargs", kNoSampler},
    {"repetition_detection", kNoSampler},
    {"guided_whitespace_pattern", "the grammar of JSON has its own white space"},
    {"thinking_token_budget", "reasoning has no limit of its own", "-1"},
    {"prompt_embeds", "the prompt is text or token ids"},
    {"kv_transfer_params", kNoParameter},
    // llama.cpp
    {"dry_multiplier", kNoSampler, "0 0.0"},
    {"dynatemp_range", kNoSampler, "0 0.0"},
    {"mirostat", kNoSampler, "0"},
    {"typical_p", kNoSampler, "1 1.0"},
    {"xtc_probability", kNoSampler, "0 0.0"},
    {"top_n_sigma", kNoSampler, "-1 -1.0 0 0.0"},
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
    {"input_prefix", kNoGaps},
    {"input_suffix", kNoGaps},
    {"input_extra", kNoGaps},
    // KoboldAI, text-generation-webui
    {"top_a", kNoSampler, "0 0.0"},
    {"tfs_z", kNoSampler, "1 1.0"},
    {"adaptive_target", kNoSampler, "-1 -1.0"},
    // Where an endpoint does not read them.
    {"best_of", kOfAnother, "1"},
    {"add_special_tokens", kOfAnother, "true"},
    {"n", kOfAnother, "1"},
    {"n_predict", kOfAnother, "-1"},
    {"parallel_tool_calls", kOfAnother, "true"},
    {"tool_choice", kOfAnother, R"("none" "auto")"},
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

std::span<const OtherParameter> OtherParameters() {
  static const std::vector<OtherParameter> kAll = [] {
    std::vector<OtherParameter> all(std::begin(kRefused), std::end(kRefused));
    for (const std::string_view name : kIgnored) all.push_back({name});
    for (const std::string_view name : kOfOthers) all.push_back({name, kOfAnother});
    return all;
  }();
  return kAll;
}

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
  const auto others = OtherParameters();
  const auto other = std::ranges::find(others, name, &OtherParameter::name);
  const bool in_table = prefix.empty() && other != others.end();
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
