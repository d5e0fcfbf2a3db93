#include "kernels/attention_spec.h"

#include <algorithm>
#include <iterator>

namespace polysketch {

namespace {
constexpr std::string_view kFormatNames[] = {"f32", "bf16", "q8",
                                             "f16"};  // in the order of StateFormat
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

StateFormat FormatOfLayer(StateFormat format, const AttentionSpec& layer) {
  return format == StateFormat::kF16 && !layer.kv_cache() ? StateFormat::kBf16 : format;
}

StateFormat FormatOfModel(std::span<const AttentionSpec> layers) {
  for (const AttentionSpec& layer : layers) {
    if (layer.state_format == StateFormat::kF16) return StateFormat::kF16;
  }
  return layers.front().state_format;
}

int64_t EarliestTruncation(std::span<const AttentionSpec> layers, int64_t position) {
  int64_t earliest = 0;
  for (const AttentionSpec& layer : layers) {
    earliest = std::max(earliest, layer.EarliestTruncation(position));
  }
  return earliest;
}

int64_t Removable(std::span<const AttentionSpec> layers, int64_t position) {
  int64_t removable = INT64_MAX / 2;
  for (const AttentionSpec& layer : layers) {
    removable = std::min(removable, layer.Removable(position));
  }
  return removable;
}

bool FoldsNext(std::span<const AttentionSpec> layers, int64_t position) {
  return std::ranges::any_of(layers, [&](const AttentionSpec& layer) {
    const int64_t period = layer.FoldPeriod();
    return period > 0 && position % period == 0 && layer.HasFarState(position + 1);
  });
}

int64_t TokensToFold(std::span<const AttentionSpec> layers, int64_t position) {
  int64_t tokens = 0;
  for (const AttentionSpec& layer : layers) {
    const int64_t period = layer.FoldPeriod();
    if (period == 0) continue;
    const int64_t left = period - position % period;
    tokens = tokens == 0 ? left : std::min(tokens, left);
  }
  return tokens;
}

}  // namespace polysketch
