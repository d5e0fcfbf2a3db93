// AMX: whether this process may use the tile registers, and their configuration.
#pragma once

#include <cstdint>

namespace polysketch::cpu {

// Whether the processor has AMX-TILE, AMX-INT8 and AMX-BF16 and the kernel lets this process use
// the tile registers. The first call requests the permission: Linux saves the 8 KB of tile
// registers only for processes that requested it.
bool HasAmx();

// The operand of ldtilecfg: palette 1; rows, and bytes of a row, of each tile.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void Set(int tile, int tile_rows, int bytes) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

// Configures the calling thread's tile registers, and clears them. The intrinsic of g++ 12 names
// only the first eight bytes of the configuration as read, so that the compiler drops the stores to
// the others.
inline void LoadTileConfig(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }

}  // namespace polysketch::cpu
