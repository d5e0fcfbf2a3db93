#include "engine/snapshot/state_layout.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "engine/snapshot/snapshot.h"
#include "kernels/saved_state.h"

namespace polysketch {
namespace {

size_t LayerBytes(const AttentionSpec& layer, int64_t position) {
  return SavedLayerBytes(layer, layer.features(), position);
}

}  // namespace

StateLayout::StateLayout(std::span<const AttentionSpec> layers, bool block_order)
    : layers_(layers.begin(), layers.end()), block_order_(block_order) {
  for (const AttentionSpec& layer : layers_) {
    if (layer.grows()) block_ = std::max<int64_t>(block_, layer.block);
  }
  for (const AttentionSpec& layer : layers_) {
    if (InBlocks(layer)) block_bytes_ += LayerBytes(layer, block_);
  }
}

size_t StateLayout::StateBytes(int64_t position) const {
  size_t bytes = 0;
  for (const AttentionSpec& layer : layers_) bytes += LayerBytes(layer, position);
  return bytes;
}

bool StateLayout::Fits(const SavedState& state) const {
  return state.saved_bytes() == StateBytes(state.position);
}

std::vector<StatePiece> StateLayout::Pieces(int64_t position,
                                            std::span<const int64_t> groups) const {
  std::vector<StatePiece> pieces;
  size_t offset = 0;
  const auto add = [&](size_t group, size_t bytes) {
    if (bytes > 0) pieces.push_back({group, offset, bytes});
    offset += bytes;
  };
  // The blocks of a layer that has `all` bytes, or of all layers.
  const auto add_blocks = [&](size_t block_bytes, size_t all) {
    for (size_t i = 0; i < groups.size(); ++i) {
      add(i, static_cast<size_t>(groups[i]) * block_bytes);
      all -= static_cast<size_t>(groups[i]) * block_bytes;
    }
    add(groups.size(), all);
  };
  if (block_order_) {
    add_blocks(block_bytes_, StateBytes(position));
    return pieces;
  }
  for (const AttentionSpec& layer : layers_) {
    const size_t bytes = LayerBytes(layer, position);
    InBlocks(layer) ? add_blocks(LayerBytes(layer, block_), bytes) : add(groups.size(), bytes);
  }
  return pieces;
}

void StateLayout::Split(
    const SavedState& state, std::span<const int64_t> groups,
    const std::function<void(size_t group, std::span<const uint8_t> bytes)>& visit) const {
  const std::vector<StatePiece> pieces = Pieces(state.position, groups);
  auto piece = pieces.begin();
  size_t done = 0;  // bytes of the piece
  state.Write([&](std::span<const uint8_t> bytes) {
    while (!bytes.empty()) {
      PS_CHECK(piece != pieces.end()) << "a state of another model";
      const size_t count = std::min(bytes.size(), piece->bytes - done);
      visit(piece->group, bytes.first(count));
      bytes = bytes.subspan(count);
      done += count;
      if (done < piece->bytes) continue;
      ++piece;
      done = 0;
    }
  });
  PS_CHECK(piece == pieces.end()) << "a state of another model";
}

void StateLayout::Join(std::span<const StatePiece> pieces, size_t group,
                       std::span<const uint8_t> bytes, std::span<uint8_t> state) {
  for (const StatePiece& piece : pieces) {
    if (piece.group != group) continue;
    PS_CHECK(piece.bytes <= bytes.size() && piece.offset + piece.bytes <= state.size());
    std::memcpy(state.data() + piece.offset, bytes.data(), piece.bytes);
    bytes = bytes.subspan(piece.bytes);
  }
  PS_CHECK(bytes.empty());
}

}  // namespace polysketch
