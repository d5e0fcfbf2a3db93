#include "bench/cost.h"

#include "engine/checkpoint/model_config.h"

namespace polysketch::bench {

TokenCost CostOfToken(const ModelSpec& model, double context, bool with_logits) {
  const AttentionSpec& spec = model.attention;
  const double L = spec.layers, D = model.frame.width, h = model.frame.mlp_hidden;
  const double H = spec.heads, d = spec.head_dim, r = spec.sketch_size;
  const auto qkv = static_cast<double>(spec.shape().row());
  TokenCost cost;
  cost.dense = L * 2 * (D * qkv + H * d * D + 2 * D * h + h * D);
  if (spec.learned_sketch()) {
    const double hidden = ModelConfig::kSketchExpansion * r;
    const double network = 2 * (d * hidden + hidden * r + r * hidden + hidden * r);
    cost.sketch = L * 2 * H * 2 * network;
  } else if (spec.random_sketch()) {
    double inputs = 0;  // rows of all matrices
    const int degree = spec.power / 2;
    for (int count = degree; count >= 2; count /= 2) {
      inputs += count * (count == degree ? d : r);
    }
    cost.sketch = L * 2 * H * 2 * inputs * r;
  } else if (spec.kind == AttentionKind::kPerformer) {
    cost.sketch = L * 2 * H * 2 * d * spec.num_features;
  }
  if (!spec.kv_cache()) cost.far = L * H * 2 * 2 * spec.features() * d;
  const double keys = spec.kv_cache() ? context : spec.block / 2.0;
  cost.near = L * H * 2 * keys * (spec.near_dim() + d);
  if (with_logits) cost.logits = 2 * D * model.frame.vocab_size;
  return cost;
}

}  // namespace polysketch::bench
