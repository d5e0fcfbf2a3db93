#include "engine/model/attention_spec_of.h"

namespace polysketch {

AttentionSpec AttentionSpecOf(const ModelConfig& config, StateFormat state_format) {
  AttentionSpec spec;
  spec.kind = config.attention;
  spec.layers = config.num_layers;
  spec.heads = config.num_heads;
  spec.head_dim = config.head_dim();
  spec.block = config.grain_size;
  spec.power = config.power;
  spec.near_power = config.near_power;
  spec.state_format = state_format;
  if (spec.sketched()) spec.sketch_size = config.sketch_size;
  switch (config.attention) {
    case AttentionKind::kSoftmax:
      spec.stabilizer = 0;
      break;
    case AttentionKind::kLinear:
      spec.num_features = spec.head_dim;
      spec.stabilizer = 1e-6f;
      break;
    case AttentionKind::kPerformer:
      spec.num_features = config.num_features;
      spec.stabilizer = 1e-6f;
      break;
    default:
      spec.stabilizer = 1;
      break;
  }
  return spec;
}

}  // namespace polysketch
