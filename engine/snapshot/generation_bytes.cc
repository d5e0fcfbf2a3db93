#include "engine/snapshot/generation_bytes.h"

#include "base/byte_io.h"
#include "engine/sampler/sampling_params.h"

namespace polysketch {
namespace {

template <typename T>
void PutOptional(const std::optional<T>& value, ByteWriter* out) {
  out->Put<uint8_t>(value.has_value() ? 1 : 0);
  out->Put<T>(value.value_or(T{}));
}

template <typename T>
std::optional<T> GetOptional(ByteReader* in) {
  const bool present = in->GetBool();
  const T value = in->Get<T>();
  return present ? std::optional<T>(value) : std::nullopt;
}

// Pairs as two arrays.
template <typename T>
void PutPairs(const std::vector<std::pair<int32_t, T>>& pairs, ByteWriter* out) {
  std::vector<int32_t> ids;
  std::vector<T> values;
  for (const auto& [id, value] : pairs) {
    ids.push_back(id);
    values.push_back(value);
  }
  out->PutArray(std::span<const int32_t>(ids));
  out->PutArray(std::span<const T>(values));
}

// False when there are not as many of both.
template <typename T>
bool GetPairs(ByteReader* in, std::vector<std::pair<int32_t, T>>* pairs) {
  const std::vector<int32_t> ids = in->GetArray<int32_t>();
  const std::vector<T> values = in->GetArray<T>();
  if (ids.size() != values.size()) return false;
  for (size_t i = 0; i < ids.size(); ++i) pairs->emplace_back(ids[i], values[i]);
  return true;
}

}  // namespace

std::string GenerationBytes(const Generation& g) {
  ByteWriter out;
  const SamplingParams& s = g.params.sampling;
  for (const float value : {s.temperature, s.top_p, s.min_p, s.repetition_penalty,
                            s.frequency_penalty, s.presence_penalty}) {
    out.Put(value);
  }
  out.Put(s.top_k);
  PutPairs(s.logit_bias, &out);
  PutOptional(s.seed, &out);
  PutOptional(g.params.max_tokens, &out);
  out.Put<uint64_t>(g.params.stop.size());
  for (const std::string& stop : g.params.stop) out.PutBytes(stop);
  out.PutArray(std::span<const int32_t>(g.params.stop_token_ids));
  PutOptional(g.params.logprobs, &out);
  PutOptional(g.params.draft_tokens, &out);
  for (const bool flag : {g.params.ignore_eos, g.params.include_stop_in_output, g.params.echo}) {
    out.Put<uint8_t>(flag ? 1 : 0);
  }
  out.Put(g.seed);
  for (const int64_t number :
       {g.max_tokens, g.prompt_tokens, g.cached_tokens, g.generated, g.echoed}) {
    out.Put(number);
  }
  PutPairs(g.counts, &out);
  out.Put(g.logprob_sum);
  out.PutBytes(g.session);
  out.Put(g.session_tokens);
  out.PutBytes(g.held);
  out.Put<uint8_t>(g.decoder.at_start ? 1 : 0);
  out.PutBytes(g.decoder.pending);
  if (g.params.best_of > 1) {
    out.Put(g.params.n);
    out.Put(g.params.best_of);
    out.Put<uint64_t>(g.choices.size());
    for (const MigratedChoice& choice : g.choices) {
      out.Put(choice.given);
      out.Put<uint8_t>(choice.over ? 1 : 0);
    }
  }
  return std::move(out).Take();
}

Result<std::optional<Generation>> ReadGeneration(std::string_view bytes) {
  ByteReader in(bytes);
  Generation g;
  SamplingParams& s = g.params.sampling;
  for (float* value : {&s.temperature, &s.top_p, &s.min_p, &s.repetition_penalty,
                       &s.frequency_penalty, &s.presence_penalty}) {
    *value = in.Get<float>();
  }
  s.top_k = in.Get<int32_t>();
  bool paired = GetPairs(&in, &s.logit_bias);
  s.seed = GetOptional<uint64_t>(&in);
  g.params.max_tokens = GetOptional<int32_t>(&in);
  const auto stops = in.Get<uint64_t>();
  if (stops > kMaxStopStrings) return DataLoss("snapshot: generation: ", stops, " stop strings");
  for (uint64_t i = 0; i < stops; ++i) g.params.stop.emplace_back(in.GetBytes());
  g.params.stop_token_ids = in.GetArray<int32_t>();
  g.params.logprobs = GetOptional<int32_t>(&in);
  g.params.draft_tokens = GetOptional<int32_t>(&in);
  for (bool* flag : {&g.params.ignore_eos, &g.params.include_stop_in_output, &g.params.echo}) {
    *flag = in.GetBool();
  }
  g.seed = in.Get<uint64_t>();
  for (int64_t* number :
       {&g.max_tokens, &g.prompt_tokens, &g.cached_tokens, &g.generated, &g.echoed}) {
    *number = in.Get<int64_t>();
  }
  paired = GetPairs(&in, &g.counts) && paired;
  g.logprob_sum = in.Get<double>();
  g.session = in.GetBytes();
  g.session_tokens = in.Get<int64_t>();
  g.held = in.GetBytes();
  g.decoder.at_start = in.GetBool();
  g.decoder.pending = in.GetBytes();
  if (!in.Finished()) {
    g.params.n = in.Get<int32_t>();
    g.params.best_of = in.Get<int32_t>();
    const auto choices = in.Get<uint64_t>();
    if (g.params.best_of < 2 || choices > kMaxChoices) {
      return DataLoss("snapshot: generation: ", choices, " of ", g.params.best_of, " choices");
    }
    g.choices.resize(choices);
    for (MigratedChoice& choice : g.choices) {
      choice.given = in.Get<int64_t>();
      choice.over = in.GetBool();
    }
  }
  if (!in.Finished() || !paired) return DataLoss("snapshot: generation: broken");
  return std::optional<Generation>(std::move(g));
}

}  // namespace polysketch
