#include "bench/cost.h"

#include <algorithm>

#include "engine/checkpoint/model_config.h"

namespace polysketch::bench {

double MeanKeys(const AttentionSpec& spec, double context) {
  if (spec.window == 0) return spec.kv_cache() ? context : spec.block / 2.0;
  const double window = spec.window_kind == WindowKind::kBlocks ? 1.5 * spec.window : spec.window;
  return std::min(context, window + spec.sinks);
}

namespace {

// Adds the attention of a layer of a model of width D.
void AddLayer(const AttentionSpec& spec, double D, double context, TokenCost* cost) {
  const double H = spec.heads, d = spec.head_dim, r = spec.sketch_size;
  cost->dense += 2 * (D * static_cast<double>(spec.shape().row()) + H * d * D);
  if (spec.learned_sketch()) {
    const double hidden = ModelConfig::kSketchExpansion * r;
    const double network = 2 * (d * hidden + hidden * r + r * hidden + hidden * r);
    cost->sketch += 2 * H * 2 * network;
  } else if (spec.random_sketch()) {
    double inputs = 0;  // rows of all matrices
    const int degree = spec.power / 2;
    for (int count = degree; count >= 2; count /= 2) {
      inputs += count * (count == degree ? d : r);
    }
    cost->sketch += 2 * H * 2 * inputs * r;
  } else if (spec.kind == AttentionKind::kPerformer) {
    cost->sketch += 2 * H * 2 * d * spec.num_features;
  }
  cost->far += (H + spec.key_heads()) * 2 * spec.features() * d;
  cost->near += H * 2 * MeanKeys(spec, context) * (spec.near_dim() + d);
}

}  // namespace

TokenCost CostOfToken(const ModelSpec& model, double context, bool with_logits) {
  const double D = model.frame.width, h = model.frame.mlp_hidden;
  TokenCost cost;
  for (const LayerSpec& layer : model.layers) {
    AddLayer(layer.attention, D, context, &cost);
    cost.dense +=
        2 * (D * static_cast<double>(UpColumns(model.frame.gate, model.frame.mlp_hidden)) + h * D);
  }
  if (with_logits) cost.logits = 2 * D * model.frame.vocab_size;
  return cost;
}

}  // namespace polysketch::bench
