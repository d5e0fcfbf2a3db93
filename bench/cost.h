// The operations of a token by the definition of the model, not by an implementation.
#pragma once

#include "engine/model/model_spec.h"

namespace polysketch::bench {

// FLOP of one token. A multiply-add is two.
struct TokenCost {
  double dense = 0;   // qkv, out, up, down
  double sketch = 0;  // sketches of queries and keys
  double far = 0;     // read and fold of the packed features; 0 for KV kinds
  double near = 0;    // block of mean length; KV kinds: all tokens of the context or window
  double logits = 0;  // 0 without with_logits
  double total() const { return dense + sketch + far + near + logits; }
};

// The near keys that a token after `context` tokens reads on average: of a block buffer half, of a window of blocks
// one and a half.
double MeanKeys(const AttentionSpec& spec, double context);

// context: earlier tokens, used for KV kinds only. with_logits: as in decoding and scoring.
TokenCost CostOfToken(const ModelSpec& model, double context, bool with_logits);

}  // namespace polysketch::bench
