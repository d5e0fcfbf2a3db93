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
                                                "performer",
                                                "symmetric_power",
                                                "polynomial_square",
                                                "affine_square"};
  const auto index = static_cast<size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

namespace {
constexpr std::string_view kFormatNames[] = {"f32", "bf16", "q8"};  // in the order of StateFormat
}  // namespace

std::string_view StateFormatName(StateFormat format) {
  return kFormatNames[static_cast<size_t>(format)];
}

std::optional<StateFormat> StateFormatOf(std::string_view name) {
  for (size_t i = 0; i < std::size(kFormatNames); ++i) {
    if (kFormatNames[i] == name) return static_cast<StateFormat>(i);
  }
  return std::nullopt;
}

}  // namespace polysketch
