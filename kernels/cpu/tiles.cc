#include "kernels/cpu/tiles.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/amx.h"

namespace polysketch::cpu {
namespace {

constexpr int kSide = 16;                      // rows, and columns, of a tile of sums
constexpr int64_t kPanelRow = 4 * kTileBlock;  // bytes of a row of a panel

// Tiles 0..3: sums (row half, column half); 4, 5: activations; 6, 7: weights.
constexpr int kActivations = 4, kWeights = 6;

// The operations of AMX that the product uses, on memory.
struct TwinTiles {
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
  // tdpbusd: unsigned bytes of a times signed bytes of b.
  template <int kSums, int kA, int kB>
  void DotBytes() {
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

#define PS_AMX __attribute__((target("amx-tile,amx-int8")))

// The same as instructions; the registers are the thread's. g++'s intrinsics are macros that spell
// their arguments into assembly, so every register is written out.
struct AmxTiles {
  template <int kTile>
  PS_AMX void Zero() {
    if constexpr (kTile == 0) _tile_zero(0);
    if constexpr (kTile == 1) _tile_zero(1);
    if constexpr (kTile == 2) _tile_zero(2);
    if constexpr (kTile == 3) _tile_zero(3);
  }
  template <int kTile>
  PS_AMX void Load(const void* from, int64_t stride) {
    if constexpr (kTile == 4) _tile_loadd(4, from, stride);
    if constexpr (kTile == 5) _tile_loadd(5, from, stride);
    if constexpr (kTile == 6) _tile_loadd(6, from, stride);
    if constexpr (kTile == 7) _tile_loadd(7, from, stride);
  }
  template <int kTile>
  PS_AMX void Store(void* to, int64_t stride) const {
    if constexpr (kTile == 0) _tile_stored(0, to, stride);
    if constexpr (kTile == 1) _tile_stored(1, to, stride);
    if constexpr (kTile == 2) _tile_stored(2, to, stride);
    if constexpr (kTile == 3) _tile_stored(3, to, stride);
  }
  template <int kSums, int kA, int kB>
  PS_AMX void DotBytes() {
    if constexpr (kSums == 0 && kA == 4 && kB == 6) _tile_dpbusd(0, 4, 6);
    if constexpr (kSums == 1 && kA == 4 && kB == 7) _tile_dpbusd(1, 4, 7);
    if constexpr (kSums == 2 && kA == 5 && kB == 6) _tile_dpbusd(2, 5, 6);
    if constexpr (kSums == 3 && kA == 5 && kB == 7) _tile_dpbusd(3, 5, 7);
  }
};

PS_AMX void Configure() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.Set(tile, kSide, 64);
  _tile_loadconfig(&config);
}

PS_AMX void ReleaseTiles() { _tile_release(); }

// w: 16 words of depth for all 32 columns, rows `w_row` bytes apart.
template <typename Tiles>
PS_AMX void AddDepth(Tiles& tiles, const uint8_t* x, int64_t x_row, const int8_t* w,
                     int64_t w_row) {
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
PS_AMX void ProductOf(Tiles& tiles, const uint8_t* x, int64_t x_row, const int8_t* w,
                      int64_t depth4, int32_t (*out)[kTileBlock]) {
  tiles.template Zero<0>();
  tiles.template Zero<1>();
  tiles.template Zero<2>();
  tiles.template Zero<3>();
  int64_t k = 0;
  for (; k + kTileDepth <= depth4; k += kTileDepth) {
    AddDepth(tiles, x + 4 * k, x_row, w + k * kPanelRow, kPanelRow);
  }
  if (k < depth4) {
    // Weights of zero behind the panel's end: what stands in the activations there does not count.
    alignas(64) int8_t rest[kTileDepth * kPanelRow] = {};
    std::memcpy(rest, w + k * kPanelRow, static_cast<size_t>((depth4 - k) * kPanelRow));
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
  if (unit_ == TileUnit::kAmx) Configure();
}

TileSession::~TileSession() {
  if (unit_ == TileUnit::kAmx) ReleaseTiles();
}

void TileSession::Product(const uint8_t* x, int64_t x_row, const int8_t* w, int64_t depth4,
                          int32_t (*out)[kTileBlock]) const {
  if (unit_ == TileUnit::kAmx) {
    AmxTiles tiles;
    ProductOf(tiles, x, x_row, w, depth4, out);
  } else {
    TwinTiles tiles;
    ProductOf(tiles, x, x_row, w, depth4, out);
  }
}

}  // namespace polysketch::cpu
