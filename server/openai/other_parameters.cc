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
    "access_programs", "background_options", "image", "metadata", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier", "store",
    "user", "verbosity",
    // Anthropic
    "diagnostics", "inference_geo", "speed",
    // vLLM
    "chat_template_content_format", "guided_decoding_backend", "media_io_kwargs",
    "mm_processor_kwargs",
    // llama.cpp; of samplers, the multiplier says whether they are on
    "id_slot", "slot_id", "n_keep", "n_discard", "n_cache_reuse", "timings_per_token",
    "return_progress", "return_tokens", "response_fields", "parse_tool_calls", "sse_ping_interval",
    "t_max_prompt_ms", "backend_sampling", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
    "dry_sequence_breakers", "dynatemp_exponent", "adaptive_decay", "mirostat_tau", "mirostat_eta",
    "xtc_threshold", "speculative.types", "speculative.n_max", "speculative.n_min",
    "speculative.p_min",
    // KoboldAI, OpenRouter
    "mode", "models"};

struct RefusedParameters {
  std::string_view why;
  std::vector<std::string_view> parameters;  // NAME, or NAME=OFF
};

// By the reason; docs/openai-api.md lists them by the servers that have them.
std::vector<RefusedParameters> AllRefused() {
  return {
      {"the server has no such sampler",
       {"use_beam_search", "length_penalty=1 1.0", "logits_processors", "vllm_xargs",
        "repetition_detection", "dry_multiplier=0 0.0", "dynatemp_range=0 0.0", "mirostat=0",
        "typical_p=1 1.0", "xtc_probability=0 0.0", "top_n_sigma=-1 -1.0 0 0.0", "min_keep=0 1",
        "penalize_nl", "n_indent=0", "top_a=0 0.0", "tfs_z=1 1.0", "adaptive_target=-1 -1.0"}},
      {"the model generates text only", {"audio", "modalities=[\"text\"]", "prediction"}},
      {"the model reads text only", {"image_data"}},
      {"the model continues text and does not fill gaps",
       {"suffix", "input_prefix", "input_suffix", "input_extra"}},
      {"the server runs no tools",
       {"web_search_options", "max_tool_calls", "container", "mcp_servers"}},
      {"the field of tools is `tools`", {"functions", "function_call=\"none\" \"auto\""}},
      {"the server has no such parameter", {"conversation", "kv_transfer_params"}},
      {"a response is made while its client waits", {"background"}},
      {"the server has no moderation", {"moderation"}},
      {"the server drops no turns", {"truncation=\"disabled\""}},
      {"the server removes nothing from a conversation", {"context_management"}},
      {"the grammar of JSON has its own white space", {"guided_whitespace_pattern"}},
      {"a grammar binds from the first token", {"grammar_lazy", "grammar_triggers"}},
      {"reasoning has no limit of its own",
       {"thinking_token_budget=-1", "thinking_budget_tokens=-1", "reasoning_budget_tokens=-1"}},
      {"a prompt that is truncated keeps its last tokens", {"truncation_side=\"left\""}},
      {"the prompt is text or token ids", {"prompt_embeds"}},
      {"the order of samplers is fixed", {"samplers"}},
      {"an output has no limit of time", {"t_max_predict_ms=0 -1"}},
      {"log-probabilities are those of the model", {"post_sampling_probs"}},
      {"the field of log-probabilities is `logprobs`", {"n_probs=0"}},
      {"the field of the number of choices is `n`", {"n_cmpl=1"}},
      {"the server has no adapters", {"lora"}},
      {"only completions read it, and the server stores no prompts", {"prompt"}},
      // Where an endpoint does not read them.
      {"it is a parameter of another endpoint",
       {"best_of=1",
        "add_special_tokens=true false",
        "add_generation_prompt=true",
        "chat_template_kwargs",
        "continue_final_message",
        "expected_position",
        "include",
        "include_reasoning=true",
        "logprobs_from=0",
        "output_config",
        "output_format",
        "reasoning",
        "reasoning_effort=\"none\"",
        "reasoning_format=\"auto\" \"none\"",
        "stream_options",
        "thinking={\"type\":\"disabled\"}",
        "top_logprobs=0",
        "n=1",
        "n_predict=-1",
        "parallel_tool_calls=true",
        "tool_choice=\"none\" \"auto\"",
        "chat_template",
        "documents",
        "echo",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "logprobs",
        "prompt_logprobs",
        "response_format",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "truncate_prompt_tokens",
        "resume_token",
        "session",
        "tools",
        "input",
        "instructions",
        "max_output_tokens",
        "previous_response_id",
        "text",
        "stop_sequences",
        "system"}},
  };
}

// False, and what is empty, is off too, unless the default is true.
bool IsOff(const Json& value, std::string_view off) {
  bool on_by_default = false;
  while (!off.empty()) {
    const std::string_view one = off.substr(0, off.find(' '));
    if (value == Json::parse(one)) return true;
    on_by_default = on_by_default || one == "true";
    off.remove_prefix(std::min(off.size(), one.size() + 1));
  }
  if (value.is_boolean()) return value == false && !on_by_default;
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_structured() && value.empty();
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
    std::vector<OtherParameter> all;
    for (const std::string_view name : kIgnored) all.push_back({name});
    for (const auto& [why, parameters] : AllRefused()) {
      for (const std::string_view one : parameters) {
        const size_t off = std::min(one.find('='), one.size());
        all.push_back({one.substr(0, off), one.substr(std::min(off + 1, one.size())), why});
      }
    }
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
