// The formats of model folders: which config.json is whose, and what each reads. A new frame is a
// parser of its config.json, the names of its tensors and a line in model_format.cc.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "base/status.h"
#include "engine/checkpoint/model_folder.h"
#include "engine/model/model_spec.h"

namespace polysketch {

class WeightReader;
struct ModelWeights;

// What a config.json says.
struct ModelDefinition {
  ModelSpec spec;
  // Reads every tensor of the model.
  std::function<Status(WeightReader* reader, ModelWeights* weights)> read_weights;
};

// Reads config.json of a folder: that of a PolySketchFormer, or Hugging Face's, which has
// "architectures" or "model_type". INVALID_ARGUMENT names a field that is wrong or not supported,
// what was expected and what was found.
Result<ModelDefinition> ReadModelDefinition(const ModelFolder& folder);
// The same of the text of a config.json. Messages begin with `source`.
Result<ModelDefinition> ParseModelDefinition(std::string_view json_text, std::string_view source);

// --- the formats: `config` is an object, of this architecture ---

Result<ModelDefinition> ReadPolysketchformer(const nlohmann::json& config, std::string_view source,
                                             std::string_view architecture);
// The Llama family, as transformers 4 and 5 write it: RMSNorm, a gated MLP, RoPE, grouped queries;
// and Brumby and PowerCoder, which have the frames of Qwen3 and of Starcoder2. Every field that
// changes what a model computes is read, or refused by name.
Result<ModelDefinition> ReadLlama(const nlohmann::json& config, std::string_view source,
                                  std::string_view architecture);

}  // namespace polysketch
