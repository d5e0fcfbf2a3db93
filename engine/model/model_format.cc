#include "engine/model/model_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/checkpoint/strict_json.h"

namespace polysketch {
namespace {

using nlohmann::json;

struct ModelFormat {
  std::string_view architecture;  // of "architectures" in Hugging Face's formats
  std::string_view model_type;
  Result<ModelDefinition> (*read)(const json& config, std::string_view source,
                                  std::string_view architecture);
};

constexpr ModelFormat kFormats[] = {
    {"LlamaForCausalLM", "llama", ReadLlama},
    {"MistralForCausalLM", "mistral", ReadLlama},
    {"Qwen2ForCausalLM", "qwen2", ReadLlama},
    {"Qwen3ForCausalLM", "qwen3", ReadLlama},
    {"SmolLM3ForCausalLM", "smollm3", ReadLlama},
    {"GraniteForCausalLM", "granite", ReadLlama},
    {"BrumbyForCausalLM", "brumby", ReadLlama},
    {"PowerCoderForCausalLM", "powercoder", ReadLlama},
};

// The name in the field, which is a string or an array of one; empty: there is no such field.
Result<std::string> NameIn(const json& config, const char* field, std::string_view source) {
  const auto value = config.find(field);
  if (value == config.end() || value->is_null()) return std::string();
  const json& name = value->is_array() && value->size() == 1 ? value->front() : *value;
  if (name.is_string()) return name.get<std::string>();
  return InvalidArgument(source, ": field \"", field, "\": expected one name, found ",
                         DescribeJson(*value));
}

// The format that has the name; `field`: which the name is from.
Result<const ModelFormat*> FormatNamed(const std::string& name, const char* field,
                                       std::string_view ModelFormat::*member,
                                       std::string_view source) {
  std::string names;
  for (const ModelFormat& format : kFormats) {
    if (format.*member == name) return &format;
    names += StrCat(names.empty() ? "" : ", ", format.*member);
  }
  return InvalidArgument(source, ": field \"", field, "\": expected one of ", names, ", found \"",
                         Abbreviate(name), "\"");
}

Result<ModelDefinition> ReadObject(const json& config, std::string_view source) {
  if (!config.is_object())
    return InvalidArgument(source, ": expected an object, found ", DescribeJson(config));
  PS_ASSIGN_OR_RETURN(const std::string architecture, NameIn(config, "architectures", source));
  PS_ASSIGN_OR_RETURN(const std::string model_type, NameIn(config, "model_type", source));
  if (config.contains("architecture") || (architecture.empty() && model_type.empty()))
    return ReadPolysketchformer(config, source, "polysketchformer");
  const ModelFormat* format = nullptr;
  if (!architecture.empty()) {
    PS_ASSIGN_OR_RETURN(
        format, FormatNamed(architecture, "architectures", &ModelFormat::architecture, source));
    if (!model_type.empty() && model_type != format->model_type) {
      return InvalidArgument(source, ": field \"model_type\": expected \"", format->model_type,
                             "\" beside ", architecture, ", found \"", Abbreviate(model_type),
                             "\"");
    }
  } else {
    PS_ASSIGN_OR_RETURN(format,
                        FormatNamed(model_type, "model_type", &ModelFormat::model_type, source));
  }
  Result<ModelDefinition> definition = format->read(config, source, format->architecture);
  if (definition.ok()) definition->spec.model_type = format->model_type;
  return definition;
}

}  // namespace

Result<ModelDefinition> ReadModelDefinition(const ModelFolder& folder) {
  PS_ASSIGN_OR_RETURN(const json config, ReadConfigJson(folder));
  return ReadObject(config, folder.PathOf(kConfigFile));
}

Result<ModelDefinition> ParseModelDefinition(std::string_view json_text, std::string_view source) {
  PS_ASSIGN_OR_RETURN(const json config, ParseConfigJson(json_text, source));
  return ReadObject(config, source);
}

}  // namespace polysketch
