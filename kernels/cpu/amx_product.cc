#include "kernels/cpu/amx_product.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/amx.h"

namespace polysketch::cpu {
namespace {

constexpr int kSide = 16;                      // rows, and columns, of a tile of sums
constexpr int64_t kPanelRow = 4 * kTileBlock;  // bytes of a row of a panel

// Tiles 0 to 3: sums (row half, column half); 4 and 5: activations; 6 and 7: weights.
constexpr int kActivations = 4, kWeights = 6;

// The AMX operations that a product uses, emulated in memory.
struct EmulatedTiles {
  alignas(64) uint8_t data[8][kSide][64];

  template <int kTile>
  void Zero() {
    std::memset(data[kTile], 0, sizeof(data[kTile]));
  }
  template <int kTile>
  void Load(const void* from, int64_t stride) {
    for (int row = 0; row < kSide; ++row) {
      std::memcpy(data[kTile][row], static_cast<const uint8_t*>(from) + row * stride, 64);
    }
  }
  template <int kTile>
  void Store(void* to, int64_t stride) const {
    for (int row = 0; row < kSide; ++row) {
      std::memcpy(static_cast<uint8_t*>(to) + row * stride, data[kTile][row], 64);
    }
  }
  // tdpbusd: unsigned bytes of a times signed bytes of b. Not sanitized: every index is that of a tile, and the checks of the
  // innermost loop took half of the time of the tests of determinism.
  template <int kSums, int kA, int kB>
  __attribute__((no_sanitize("address", "undefined"))) void DotBytes() {
    for (int m = 0; m < kSide; ++m) {
      int32_t sums[kSide];
      std::memcpy(sums, data[kSums][m], sizeof(sums));
      for (int k = 0; k < kTileDepth; ++k) {
        for (int n = 0; n < kSide; ++n) {
          for (int j = 0; j < 4; ++j) {
            sums[n] += data[kA][m][4 * k + j] * static_cast<int8_t>(data[kB][k][4 * n + j]);
          }
        }
      }
      std::memcpy(data[kSums][m], sums, sizeof(sums));
    }
  }
};

// The same operations on the tile registers of the thread. The intrinsics of g++ are macros that
// take literals only.
struct AmxTiles {
  template <int kTile>
  void Zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  void Load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(from), "r"(stride) : "memory");
  }
  template <int kTile>
  void Store(void* to, int64_t stride) const {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(to), "r"(stride) : "memory");
  }
  template <int kSums, int kA, int kB>
  void DotBytes() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kA), "i"(kB));
  }
};

void ConfigureTiles() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.Set(tile, kSide, 64);
  LoadTileConfig(config);
}

__attribute__((target("amx-tile"))) void ReleaseTiles() { _tile_release(); }

// Adds the products of 16 words of depth. w: the words of all 32 columns, rows `w_row` bytes apart.
template <typename Tiles>
void AddDepth(Tiles& tiles, const uint8_t* x, int64_t x_row, const int8_t* w, int64_t w_row) {
  tiles.template Load<kActivations>(x, x_row);
  tiles.template Load<kActivations + 1>(x + kSide * x_row, x_row);
  tiles.template Load<kWeights>(w, w_row);
  tiles.template Load<kWeights + 1>(w + 4 * kSide, w_row);
  tiles.template DotBytes<0, kActivations, kWeights>();
  tiles.template DotBytes<1, kActivations, kWeights + 1>();
  tiles.template DotBytes<2, kActivations + 1, kWeights>();
  tiles.template DotBytes<3, kActivations + 1, kWeights + 1>();
}

template <typename Tiles>
void Multiply(Tiles& tiles, const uint8_t* x, int64_t x_row, const int8_t* w, int64_t depth,
              int32_t (*out)[kTileBlock]) {
  tiles.template Zero<0>();
  tiles.template Zero<1>();
  tiles.template Zero<2>();
  tiles.template Zero<3>();
  int64_t k = 0;
  for (; k + kTileDepth <= depth; k += kTileDepth) {
    AddDepth(tiles, x + 4 * k, x_row, w + k * kPanelRow, kPanelRow);
  }
  if (k < depth) {
    // After the end of the panel the weights are zero, so that the activations there do not count.
    alignas(64) int8_t rest[kTileDepth * kPanelRow] = {};
    std::memcpy(rest, w + k * kPanelRow, static_cast<size_t>((depth - k) * kPanelRow));
    AddDepth(tiles, x + 4 * k, x_row, rest, kPanelRow);
  }
  constexpr int64_t kOutRow = kTileBlock * sizeof(int32_t);
  tiles.template Store<0>(&out[0][0], kOutRow);
  tiles.template Store<1>(&out[0][kSide], kOutRow);
  tiles.template Store<2>(&out[kSide][0], kOutRow);
  tiles.template Store<3>(&out[kSide][kSide], kOutRow);
}

}  // namespace

TileSession::TileSession(TileUnit unit) : unit_(unit) {
  if (unit_ == TileUnit::kAmx) ConfigureTiles();
}

TileSession::~TileSession() {
  if (unit_ == TileUnit::kAmx) ReleaseTiles();
}

void TileSession::Product(const uint8_t* x, int64_t x_row, const int8_t* w, int64_t depth,
                          int32_t (*out)[kTileBlock]) const {
  if (unit_ == TileUnit::kAmx) {
    AmxTiles tiles;
    Multiply(tiles, x, x_row, w, depth, out);
  } else {
    EmulatedTiles tiles;
    Multiply(tiles, x, x_row, w, depth, out);
  }
}

}  // namespace polysketch::cpu
