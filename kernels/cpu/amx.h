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

// Configures and clears the calling thread's tile registers. HasAmx() must have returned true.
// _tile_loadconfig of g++ 12 states that it reads 8 of the 64 bytes: the compiler then leaves out
// the stores of the others, and the processor faults on what is in their place.
inline void LoadTileConfig(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }

}  // namespace polysketch::cpu
