#include "engine/sampler/generation_config.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/checkpoint/json_field_reader.h"
#include "engine/checkpoint/strict_json.h"
#include "engine/sampler/sampling_params.h"

namespace polysketch {
namespace {

using nlohmann::json;

constexpr char kFile[] = "generation_config.json";
constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr int kMaxGenerationConfigDepth = 16;
constexpr size_t kMaxEosIds = 256;

class SamplingReader {
 public:
  SamplingReader(const json& object, std::string_view source)
      : fields_(object, source, JsonFieldReader::Null::kMissing), source_(source) {}

  // `*value` keeps its default without the field.
  void Number(const char* name, const ParameterRange& range, float* value) {
    const json* found = fields_.Find(name);
    if (found == nullptr) return;
    if (!found->is_number()) return Fail(name, "a number", *found);
    const auto number = found->get<double>();
    if (!range.Contains(number))
      return Fail(StrCat(name, ": expected ", range.Text(), ", found ", found->dump()));
    *value = ToParameter(number);
  }
  void Integer(const char* name, int32_t* value) {
    constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
    const json* found = fields_.Find(name);
    if (found == nullptr) return;
    const std::optional<int> integer = IntIn(*found, -kMax, kMax);
    if (!integer) return Fail(name, "an integer", *found);
    *value = *integer;
  }
  // A token id, or an array of them.
  void Ids(const char* name, int vocab_size, std::vector<int32_t>* ids) {
    const json* found = fields_.Find(name);
    if (found == nullptr) return;
    const json list = found->is_array() ? *found : json::array({*found});
    if (list.size() > kMaxEosIds) {
      return Fail(StrCat(name, ": expected at most ", kMaxEosIds, " ids, found ", list.size()));
    }
    for (const json& element : list) {
      const std::optional<int> id = IntIn(element, 0, vocab_size - 1);
      if (!id) return Fail(name, StrCat("token ids in [0, ", vocab_size, ")"), element);
      if (std::ranges::find(*ids, *id) == ids->end()) ids->push_back(*id);
    }
  }

  void Fail(std::string_view message) { fields_.Fail(InvalidArgument(source_, ": ", message)); }
  const Status& status() const { return fields_.status(); }

 private:
  void Fail(const char* name, std::string_view expected, const json& found) {
    Fail(StrCat(name, ": expected ", expected, ", found ", DescribeJson(found)));
  }

  JsonFieldReader fields_;
  const std::string_view source_;
};

}  // namespace

Result<GenerationConfig> GenerationConfig::Parse(std::string_view json_text,
                                                 std::string_view source, int vocab_size) {
  PS_ASSIGN_OR_RETURN(const json object,
                      ParseStrictJson(json_text, source, kMaxGenerationConfigDepth));
  if (!object.is_object())
    return InvalidArgument(source, ": expected an object, found ", DescribeJson(object));
  GenerationConfig config;
  SamplingParams& sampling = config.sampling;
  SamplingReader fields(object, source);
  fields.Ids("eos_token_id", vocab_size, &config.eos_ids);
  fields.Number("temperature", kTemperatureRange, &sampling.temperature);
  fields.Integer("top_k", &sampling.top_k);
  // vLLM's value for "off".
  if (sampling.top_k == -1) sampling.top_k = 0;
  fields.Number("top_p", kTopPRange, &sampling.top_p);
  fields.Number("min_p", kMinPRange, &sampling.min_p);
  fields.Number("repetition_penalty", kRepetitionPenaltyRange, &sampling.repetition_penalty);
  if (const Status valid = ValidateSampling(sampling, vocab_size); !valid.ok())
    fields.Fail(valid.message());
  PS_RETURN_IF_ERROR(fields.status());
  return config;
}

Result<GenerationConfig> GenerationConfig::Load(const ModelFolder& folder, int vocab_size) {
  if (!folder.Has(kFile)) return GenerationConfig();
  PS_ASSIGN_OR_RETURN(const std::string text, folder.Read(kFile, kMaxFileBytes));
  return Parse(text, folder.PathOf(kFile), vocab_size);
}

}  // namespace polysketch
