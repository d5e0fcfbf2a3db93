// The tensors of the Llama family (model_format.h), as Hugging Face's transformers names them.
#pragma once

#include "base/status.h"
#include "engine/model/model_spec.h"
#include "engine/model/weight_reader.h"

namespace polysketch {

Status ReadLlamaWeights(const ModelSpec& spec, WeightReader* reader, ModelWeights* weights);

}  // namespace polysketch
