#include "server/openai/completion_request.h"

#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "server/convert/request_id.h"
#include "server/convert/status_map.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

// Adds values that are there to a field of a message.
template <typename Values, typename Field>
void Add(const std::optional<Values>& values, Field* field) {
  if (values.has_value()) field->Add(values->begin(), values->end());
}

void ReadLogitBias(JsonFields* fields, v1::Sampling* sampling) {
  const Json* biases = fields->Object("logit_bias");
  if (biases == nullptr) return;
  for (const auto& [key, value] : biases->items()) {
    int32_t id = 0;
    const char* const end = key.data() + key.size();
    const auto [stop, error] = std::from_chars(key.data(), end, id);
    if (error != std::errc() || stop != end) {
      return fields->Fail("logit_bias",
                          StrCat("expected token ids as keys, found \"", Abbreviate(key), "\""));
    }
    const Result<float> bias = ToNumber(value, StrCat("logit_bias[", id, "]"), kLogitBiasRange);
    if (!bias.ok()) return fields->Merge(bias.status());
    (*sampling->mutable_logit_bias())[id] = *bias;
  }
}

void ReadSampling(JsonFields* fields, CompletionOptions* options, v1::Sampling* sampling) {
  if (const auto value = fields->Number("temperature", kTemperatureRange))
    sampling->set_temperature(*value);
  if (const auto value = fields->Number("top_p", kTopPRange)) sampling->set_top_p(*value);
  // vLLM's value for "off" is -1.
  if (const auto value = fields->Integer("top_k", -1, kMaxInt32))
    sampling->set_top_k(static_cast<int32_t>(std::max<int64_t>(*value, 0)));
  if (const auto value = fields->Number("min_p", kMinPRange)) sampling->set_min_p(*value);
  for (const char* const name : {"repeat_penalty", "repetition_penalty"}) {
    const auto value = fields->Number(name, kRepetitionPenaltyRange);
    if (!value.has_value()) continue;
    sampling->set_repetition_penalty(*value);
    options->Name("sampling.repetition_penalty", name);
  }
  // The penalty counts all tokens.
  const int64_t last = fields->Integer("repeat_last_n", -1, kMaxInt32).value_or(-1);
  if (last > 0 && sampling->has_repetition_penalty() && sampling->repetition_penalty() != 1)
    fields->Fail("repeat_last_n", StrCat("expected -1 beside a penalty, found ", last));
  if (const auto value = fields->Number("frequency_penalty", kAdditivePenaltyRange))
    sampling->set_frequency_penalty(*value);
  if (const auto value = fields->Number("presence_penalty", kAdditivePenaltyRange))
    sampling->set_presence_penalty(*value);
  if (const auto value = fields->Integer("seed", -kMaxInt64 - 1, kMaxInt64))
    sampling->set_seed(static_cast<uint64_t>(*value));
  ReadLogitBias(fields, sampling);
  Add(fields->Strings("bad_words"), sampling->mutable_bad_words());
  if (const auto ids = fields->Integers("allowed_token_ids")) {
    sampling->mutable_allowed_token_ids()->Add(ids->begin(), ids->end());
    if (ids->empty()) fields->Fail("allowed_token_ids", "expected at least one id, found none");
  }
}

// The prefix cache: {"read": true, "write": true, "points": [512]}.
void ReadCache(JsonFields* fields, v1::CompleteRequest* request) {
  if (const auto read = fields->Bool("cache_prompt")) request->mutable_cache()->set_read(*read);
  if (const auto salt = fields->String("cache_salt")) {
    request->mutable_cache()->set_salt(*salt);
    if (salt->empty()) fields->Fail("cache_salt", "expected at least one byte, found none");
  }
  const Json* object = fields->Object("cache");
  if (object == nullptr) return;
  JsonFields cache(*object, "cache.");
  if (const auto read = cache.Bool("read")) request->mutable_cache()->set_read(*read);
  if (const auto write = cache.Bool("write")) request->mutable_cache()->set_write(*write);
  Add(cache.Integers("points"), request->mutable_cache()->mutable_points());
  fields->Merge(cache.Finish());
}

// Adds the prompts: a string, an array of strings, of ids, or of arrays of ids.
void AddPrompts(JsonFields* fields, std::vector<v1::Prompt>* prompts) {
  const auto add = [&] { return &prompts->emplace_back(); };
  const auto add_ids = [&](const Json& array, const std::string& name) {
    Result<std::vector<int32_t>> ids = ToIntegers(array, name);
    fields->Merge(ids.status());
    if (ids.ok()) add()->mutable_tokens()->mutable_ids()->Add(ids->begin(), ids->end());
  };
  const Json* prompt = fields->Any("prompt");
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
      const Json& element = (*prompt)[i];
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

// Makes token ids of prompts that are texts.
Status TokenizePrompts(const ServedModel& model, bool add_bos, CompletionJob* job) {
  const RequestRules& rules = model.rules;
  if (!job->common.session().empty() || !job->common.resume_token().empty()) {
    return InvalidArgument(
        job->common.session().empty() ? "resume_token" : "session",
        ": expected none beside add_special_tokens, truncate_prompt_tokens and return_token_ids");
  }
  for (v1::Prompt& prompt : job->prompts) {
    if (prompt.has_text()) {
      PS_RETURN_IF_ERROR(RequireTokenizer(rules, "prompt"));
      const Result<std::vector<int32_t>> ids = rules.tokenizer->Encode(prompt.text());
      if (!ids.ok()) return Prefixed("prompt: ", ids.status());
      auto* const to = prompt.mutable_tokens()->mutable_ids();
      if (rules.add_bos && add_bos) to->Add(rules.bos_id);
      to->Add(ids->begin(), ids->end());
    }
    TruncatePrompt(model, *job, &prompt);
  }
  return Status();
}

// Reads return_token_ids, return_tokens_as_token_ids and truncate_prompt_tokens.
void ReadTokenIds(JsonFields* fields, CompletionOptions* options) {
  options->token_ids = fields->Bool("return_token_ids").value_or(false);
  options->tokens_as_ids = fields->Bool("return_tokens_as_token_ids").value_or(false);
  options->truncate_prompt = fields->Integer("truncate_prompt_tokens", -1, kMaxInt32);
  if (options->truncate_prompt == 0)
    fields->Fail("truncate_prompt_tokens", "expected -1, or 1 or more, found 0");
}

}  // namespace

int64_t MaxModelTokens(const ServedModel& model) {
  const int64_t limit = model.description.context_limit();
  return limit > 0 ? limit : model.rules.max_prompt_tokens;
}

void ReadMaxTokens(JsonFields* fields, std::initializer_list<const char*> names,
                   CompletionJob* job) {
  v1::CompleteRequest* const request = &job->common;
  job->options.Name("max_tokens", *std::prev(names.end()));
  for (const char* const name : names) {
    // llama.cpp's value for "no limit" is -1.
    const int64_t least = std::string_view(name) == "n_predict" ? -1 : 0;
    const auto limit = fields->Integer(name, least, kMaxInt32);
    if (!limit.has_value()) continue;
    job->options.Name("max_tokens", name);
    if (*limit < 0) {
      request->clear_max_tokens();
    } else {
      request->set_max_tokens(static_cast<int32_t>(*limit));
    }
  }
}

void ReadPromptLogprobs(JsonFields* fields, CompletionOptions* options,
                        v1::CompleteRequest* request) {
  options->alternatives = request->logprobs();
  const auto alternatives = fields->Integer("prompt_logprobs", 0, 20);
  if (!alternatives) return;
  if (options->stream)
    return fields->Fail("prompt_logprobs", "expected none beside \"stream\": true");
  options->prompt_logprobs = static_cast<int>(*alternatives);
  request->set_echo(true);
  request->set_logprobs(std::max(options->alternatives, *options->prompt_logprobs));
}

void TruncatePrompt(const ServedModel& model, const CompletionJob& job, v1::Prompt* prompt) {
  if (!job.options.truncate_prompt || !prompt->has_tokens()) return;
  const int64_t most =
      *job.options.truncate_prompt > 0 ? *job.options.truncate_prompt : MaxModelTokens(model);
  auto* const ids = prompt->mutable_tokens()->mutable_ids();
  if (ids->size() > most) ids->ExtractSubrange(0, static_cast<int>(ids->size() - most), nullptr);
}

void ShowMarks(std::initializer_list<std::string_view> marks, CompletionJob* job) {
  std::vector<std::string_view>& shown = job->options.marks;
  const v1::CompleteRequest& request = job->common;
  const bool skips = !request.has_skip_special_tokens() || request.skip_special_tokens();
  if (!skips && shown.empty()) return;
  shown.insert(shown.end(), marks);
  job->common.set_skip_special_tokens(false);
}

void ReadGeneration(JsonFields* fields, CompletionJob* job) {
  v1::CompleteRequest* const request = &job->common;
  ReadSampling(fields, &job->options, request->mutable_sampling());
  Add(fields->Strings("stop"), request->mutable_stop());
  Add(fields->Integers("stop_token_ids"), request->mutable_stop_token_ids());
  if (const auto value = fields->Bool("ignore_eos")) request->set_ignore_eos(*value);
  if (const auto value = fields->Integer("min_tokens", 0, kMaxInt32))
    request->set_min_tokens(static_cast<int32_t>(*value));
  if (const auto value = fields->Bool("include_stop_str_in_output"))
    request->set_include_stop_in_output(*value);
  if (const auto value = fields->Bool("skip_special_tokens"))
    request->set_skip_special_tokens(*value);
  // The tokenizers of Hugging Face's library put no space there, whatever it says.
  (void)fields->Bool("spaces_between_special_tokens");
  if (const auto value = fields->Integer("priority", -kMaxInt32, kMaxInt32))
    request->set_priority(static_cast<int32_t>(*value));
  if (const auto value = fields->Integer("draft_tokens", 0, kMaxInt32))
    request->set_draft_tokens(static_cast<int32_t>(*value));
  ReadCache(fields, request);
  ReadGuided(fields, request);
}

void ReadSession(JsonFields* fields, v1::CompleteRequest* request) {
  if (const auto value = fields->String("session")) request->set_session(*value);
  if (const auto value = fields->Integer("expected_position", 0, kMaxInt64))
    request->set_expected_position(*value);
  if (const auto value = fields->String("resume_token")) request->set_resume_token(*value);
}

void ReadStreaming(JsonFields* fields, CompletionOptions* options) {
  options->request_id = fields->String("request_id").value_or("");
  if (!options->request_id.empty() && !IsRequestId(options->request_id))
    fields->Fail("request_id",
                 StrCat("expected an id as x-request-id may be, 1 to 128 of [A-Za-z0-9._:-], found "
                        "\"",
                        Abbreviate(options->request_id), "\""));
  options->stream = fields->Bool("stream").value_or(false);
  const Json* object = fields->Object("stream_options");
  if (object == nullptr) return;
  if (!options->stream)
    return fields->Fail("stream_options", "expected \"stream\": true beside it");
  JsonFields stream_options(*object, "stream_options.");
  options->include_usage = stream_options.Bool("include_usage").value_or(false);
  options->continuous_usage = stream_options.Bool("continuous_usage_stats").value_or(false);
  stream_options.Ignore({"include_obfuscation"});
  fields->Merge(stream_options.Finish());
}

void ReadCompletion(JsonFields* fields, const Json& body, CompletionJob* job) {
  job->options.model = fields->String("model").value_or("");
  ReadStreaming(fields, &job->options);
  ReadGeneration(fields, job);
  ReadResponseFormat(fields, &job->common);
  job->options.grammar.output = OutputField(body);
  ReadTokenIds(fields, &job->options);
  job->options.choices = static_cast<int>(fields->Integer("n", 1, 64).value_or(1));
  job->common.set_n(job->options.choices);
}

v1::CompleteRequest CompletionJob::Request(size_t call) const {
  v1::CompleteRequest request = common;
  if (!prompts.empty()) *request.mutable_prompt() = prompts[call];
  return request;
}

int64_t CompletionJob::MemoryBytes() const {
  size_t bytes = (1 + calls()) * common.SpaceUsedLong();
  for (const v1::Prompt& prompt : prompts) bytes += 2 * prompt.SpaceUsedLong();
  return static_cast<int64_t>(bytes);
}

Result<CompletionJob> ToCompletionJob(const Json& body, const ServedModel* model) {
  CompletionJob job;
  JsonFields fields(body);
  v1::CompleteRequest& common = job.common;
  ReadCompletion(&fields, body, &job);
  ReadSession(&fields, &common);
  common.set_max_tokens(16);
  ReadMaxTokens(&fields, {"n_predict", "max_tokens"}, &job);
  if (const auto value = fields.Integer("best_of", 1, 64))
    common.set_best_of(static_cast<int32_t>(*value));
  if (const auto value = fields.Integer("logprobs", 0, 20)) {
    job.options.logprobs = true;
    common.set_logprobs(static_cast<int32_t>(*value));
  }
  job.options.echo = fields.Bool("echo").value_or(false);
  common.set_echo(job.options.echo);
  ReadPromptLogprobs(&fields, &job.options, &common);
  if (const auto value = fields.Integer("logprobs_from", 0, kMaxInt64))
    common.set_logprobs_from(*value);
  const bool add_bos = fields.Bool("add_special_tokens").value_or(true);
  // The token says everything else.
  if (!common.resume_token().empty()) {
    const std::string token = common.resume_token();
    common.Clear();
    common.set_resume_token(token);
  }
  AddPrompts(&fields, &job.prompts);
  PS_RETURN_IF_ERROR(fields.Finish());
  const bool needs_ids = !add_bos || job.options.token_ids || job.options.truncate_prompt;
  if (needs_ids && model != nullptr) PS_RETURN_IF_ERROR(TokenizePrompts(*model, add_bos, &job));
  return job;
}

}  // namespace polysketch
