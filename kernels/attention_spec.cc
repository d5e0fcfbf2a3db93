#include "kernels/attention_spec.h"

namespace polysketch {

std::string_view AttentionKindName(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kSoftmax:
      return "softmax";
    case AttentionKind::kPolynomial:
      return "polynomial";
    case AttentionKind::kRandomSketch:
      return "random_sketch";
    case AttentionKind::kLearnedSketch:
      return "learned_sketch";
    case AttentionKind::kLearnedSketchMixed:
      return "learned_sketch_mixed";
    case AttentionKind::kRandomSketchMixed:
      return "random_sketch_mixed";
    case AttentionKind::kLinear:
      return "linear";
    case AttentionKind::kPerformer:
      return "performer";
  }
  return "unknown";
}

}  // namespace polysketch
