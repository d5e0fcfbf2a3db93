// What a token must cost: the operations and bytes of the model's definition, not of any
// implementation (numerics.md, "What a token costs").
#pragma once

#include "engine/checkpoint/model_config.h"
#include "kernels/attention_spec.h"

namespace polysketch::bench {

// FLOP (a multiply-add is two) of one token.
struct TokenCost {
  double dense = 0;   // qkv, out, up, down
  double sketch = 0;  // sketch networks or random sketches, of q and k
  double far = 0;     // read and fold over packed features; 0 for KV kinds
  double near = 0;    // own block at its mean length; KV kinds: the mean over the context
  double logits = 0;  // where asked for
  double total() const { return dense + sketch + far + near + logits; }
};

// `context`: tokens before (KV kinds only); `with_logits`: decode, or a scored token.
TokenCost CostOfToken(const ModelConfig& config, const AttentionSpec& spec, double context,
                      bool with_logits);

}  // namespace polysketch::bench
