#include "bench/cost.h"

namespace polysketch::bench {

TokenCost CostOfToken(const ModelConfig& config, const AttentionSpec& spec, double context,
                      bool with_logits) {
  const double L = config.num_layers, D = config.emb_dim, h = config.mlp_hidden();
  const double H = spec.heads, d = spec.head_dim, r = config.sketch_size;
  TokenCost cost;
  cost.dense = L * 2 * (3 * D * D + D * D + 2 * D * h + h * D);
  if (config.is_learned_sketch()) {
    const double hidden = ModelConfig::kSketchExpansion * r;
    const double network = 2 * (d * hidden + hidden * r + r * hidden + hidden * r);
    cost.sketch = L * 2 * H * 2 * network;
  } else if (config.is_random_sketch()) {
    double inputs = 0;  // rows of all matrices
    for (int count = config.sketch_degree(); count >= 2; count /= 2) {
      inputs += count * (count == config.sketch_degree() ? d : r);
    }
    cost.sketch = L * 2 * H * 2 * inputs * r;
  } else if (config.attention == AttentionKind::kPerformer) {
    cost.sketch = L * 2 * H * 2 * d * spec.num_features;
  }
  if (!spec.kv_cache()) cost.far = L * H * 2 * 2 * spec.features() * d;
  const double keys = spec.kv_cache() ? context : spec.block / 2.0;
  cost.near = L * H * 2 * keys * (spec.near_dim() + d);
  if (with_logits) cost.logits = 2 * D * config.vocab_size;
  return cost;
}

}  // namespace polysketch::bench
