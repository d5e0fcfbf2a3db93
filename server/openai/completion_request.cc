#include "server/openai/completion_request.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "server/openai/structured_output.h"

namespace polysketch {
namespace {

using nlohmann::json;

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

void ReadLogitBias(JsonFields* fields, v1::Sampling* sampling) {
  const json* biases = fields->Object("logit_bias");
  if (biases == nullptr) return;
  for (const auto& [key, value] : biases->items()) {
    int32_t id = 0;
    const char* const end = key.data() + key.size();
    const auto [stop, error] = std::from_chars(key.data(), end, id);
    if (error != std::errc() || stop != end || !value.is_number()) {
      return fields->Fail("logit_bias", StrCat("expected token ids and numbers, found \"", key,
                                               "\": ", JsonTypeName(value)));
    }
    (*sampling->mutable_logit_bias())[id] = value.get<float>();
  }
}

void ReadSampling(JsonFields* fields, v1::Sampling* sampling) {
  if (const auto value = fields->Number("temperature")) sampling->set_temperature(*value);
  if (const auto value = fields->Number("top_p")) sampling->set_top_p(*value);
  // vLLM's value for "off" is -1.
  if (const auto value = fields->Integer("top_k", -1, kMaxInt32))
    sampling->set_top_k(static_cast<int32_t>(std::max<int64_t>(*value, 0)));
  if (const auto value = fields->Number("min_p")) sampling->set_min_p(*value);
  if (const auto value = fields->Number("repetition_penalty"))
    sampling->set_repetition_penalty(*value);
  if (const auto value = fields->Number("frequency_penalty"))
    sampling->set_frequency_penalty(*value);
  if (const auto value = fields->Number("presence_penalty")) sampling->set_presence_penalty(*value);
  if (const auto value = fields->Integer("seed", -kMaxInt64 - 1, kMaxInt64))
    sampling->set_seed(static_cast<uint64_t>(*value));
  ReadLogitBias(fields, sampling);
}

// The prefix cache: {"read": true, "write": true, "points": [512]}.
void ReadCache(JsonFields* fields, v1::CompleteRequest* request) {
  const json* object = fields->Object("cache");
  if (object == nullptr) return;
  JsonFields cache(*object, "cache.");
  if (const auto read = cache.Bool("read")) request->mutable_cache()->set_read(*read);
  if (const auto write = cache.Bool("write")) request->mutable_cache()->set_write(*write);
  if (const auto points = cache.Integers("points"))
    request->mutable_cache()->mutable_points()->Add(points->begin(), points->end());
  fields->Merge(cache.Finish());
}

// Adds the prompts: a string, an array of strings, of ids, or of arrays of ids.
void AddPrompts(JsonFields* fields, std::vector<v1::Prompt>* prompts) {
  const auto add = [&] { return &prompts->emplace_back(); };
  const auto add_ids = [&](const json& array, const std::string& name) {
    Result<std::vector<int32_t>> ids = ToIntegers(array, name);
    fields->Merge(ids.status());
    if (ids.ok()) add()->mutable_tokens()->mutable_ids()->Add(ids->begin(), ids->end());
  };
  const json* prompt = fields->Any("prompt");
  if (prompt == nullptr) return;  // valid for a session
  if (prompt->is_string()) {
    add()->set_text(prompt->get<std::string>());
  } else if (prompt->is_array() && !prompt->empty() && prompt->front().is_number()) {
    add_ids(*prompt, "prompt");
  } else if (prompt->is_array() && !prompt->empty()) {
    if (prompt->size() > kMaxPrompts) {
      return fields->Fail(
          "prompt", StrCat("expected at most ", kMaxPrompts, " prompts, found ", prompt->size()));
    }
    for (size_t i = 0; i < prompt->size(); ++i) {
      const json& element = (*prompt)[i];
      if (element.is_string()) {
        add()->set_text(element.get<std::string>());
      } else {
        add_ids(element, StrCat("prompt[", i, "]"));
      }
    }
  } else {
    fields->Fail("prompt", StrCat("expected a string, or an array of strings, of token ids or of "
                                  "arrays of token ids, found ",
                                  prompt->is_array() ? "an empty array" : JsonTypeName(*prompt)));
  }
}

}  // namespace

void ReadGeneration(JsonFields* fields, v1::CompleteRequest* request) {
  ReadSampling(fields, request->mutable_sampling());
  if (const auto stops = fields->Strings("stop"))
    request->mutable_stop()->Add(stops->begin(), stops->end());
  if (const auto ids = fields->Integers("stop_token_ids"))
    request->mutable_stop_token_ids()->Add(ids->begin(), ids->end());
  if (const auto value = fields->Bool("ignore_eos")) request->set_ignore_eos(*value);
  if (const auto value = fields->Bool("include_stop_str_in_output"))
    request->set_include_stop_in_output(*value);
  if (const auto value = fields->Bool("skip_special_tokens"))
    request->set_skip_special_tokens(*value);
  if (const auto value = fields->Integer("priority", -kMaxInt32, kMaxInt32))
    request->set_priority(static_cast<int32_t>(*value));
  if (const auto value = fields->Integer("draft_tokens", 0, kMaxInt32))
    request->set_draft_tokens(static_cast<int32_t>(*value));
  ReadCache(fields, request);
  ReadGuided(fields, request);
  fields->Ignore(
      {"user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"});
}

void ReadSession(JsonFields* fields, v1::CompleteRequest* request) {
  if (const auto value = fields->String("session")) request->set_session(*value);
  if (const auto value = fields->Integer("expected_position", 0, kMaxInt64))
    request->set_expected_position(*value);
  if (const auto value = fields->String("resume_token")) request->set_resume_token(*value);
}

void ReadStreaming(JsonFields* fields, CompletionOptions* options) {
  options->stream = fields->Bool("stream").value_or(false);
  const json* object = fields->Object("stream_options");
  if (object == nullptr) return;
  if (!options->stream)
    return fields->Fail("stream_options", "expected \"stream\": true beside it");
  JsonFields stream_options(*object, "stream_options.");
  options->include_usage = stream_options.Bool("include_usage").value_or(false);
  options->continuous_usage = stream_options.Bool("continuous_usage_stats").value_or(false);
  stream_options.Ignore({"include_obfuscation"});
  fields->Merge(stream_options.Finish());
}

v1::CompleteRequest CompletionJob::Request(size_t call) const {
  v1::CompleteRequest request = common;
  if (!prompts.empty()) *request.mutable_prompt() = prompts[call];
  return request;
}

int64_t CompletionJob::MemoryBytes() const {
  constexpr size_t kPromptField = 16;  // its tag and its length
  size_t bytes = common.SpaceUsedLong() + calls() * common.ByteSizeLong();
  for (const v1::Prompt& prompt : prompts)
    bytes += prompt.SpaceUsedLong() + kPromptField + prompt.ByteSizeLong();
  return static_cast<int64_t>(bytes);
}

Result<CompletionJob> ToCompletionJob(const json& body) {
  CompletionJob job;
  JsonFields fields(body);
  v1::CompleteRequest& common = job.common;
  job.options.model = fields.String("model").value_or("");
  ReadStreaming(&fields, &job.options);
  ReadGeneration(&fields, &common);
  ReadResponseFormat(&fields, &common);
  ReadSession(&fields, &common);
  fields.Ignore({"metadata", "store"});
  common.set_max_tokens(
      static_cast<int32_t>(fields.Integer("max_tokens", 0, kMaxInt32).value_or(16)));
  job.options.choices = static_cast<int>(fields.Integer("n", 1, 64).value_or(1));
  common.set_n(job.options.choices);
  if (const auto value = fields.Integer("best_of", 1, 64))
    common.set_best_of(static_cast<int32_t>(*value));
  if (const auto value = fields.Integer("logprobs", 0, 20)) {
    job.options.logprobs = true;
    common.set_logprobs(static_cast<int32_t>(*value));
  }
  job.options.echo = fields.Bool("echo").value_or(false);
  common.set_echo(job.options.echo);
  if (const auto value = fields.Integer("logprobs_from", 0, kMaxInt64))
    common.set_logprobs_from(*value);
  if (!fields.String("suffix").value_or("").empty())
    fields.Fail("suffix", "expected none: the model continues text and does not fill gaps");
  // The token says everything else.
  if (!common.resume_token().empty()) {
    const std::string token = common.resume_token();
    common.Clear();
    common.set_resume_token(token);
  }
  AddPrompts(&fields, &job.prompts);
  PS_RETURN_IF_ERROR(fields.Finish());
  return job;
}

}  // namespace polysketch
