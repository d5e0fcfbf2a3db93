// What a config means for the kernels.
#pragma once

#include "engine/checkpoint/model_config.h"
#include "kernels/attention_spec.h"

namespace polysketch {

AttentionSpec AttentionSpecOf(const ModelConfig& config, StateFormat state_format);

}  // namespace polysketch
