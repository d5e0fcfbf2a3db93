#include "kernels/attention_spec.h"

#include <iterator>

namespace polysketch {

std::string_view AttentionKindName(AttentionKind kind) {
  static constexpr std::string_view kNames[] = {// in the order of AttentionKind
                                                "softmax",
                                                "polynomial",
                                                "random_sketch",
                                                "learned_sketch",
                                                "learned_sketch_mixed",
                                                "random_sketch_mixed",
                                                "linear",
                                                "performer"};
  const auto index = static_cast<size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

}  // namespace polysketch
