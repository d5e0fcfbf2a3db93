#include "kernels/cpu/amx_product.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/amx.h"

namespace polysketch::cpu {
namespace {

constexpr int kSide = kTileSide;
constexpr int64_t kPanelRow = 4 * kTileBlock;  // bytes of a row of a panel
constexpr int kLine = 64;                      // bytes of a cache line

// A block of rows. Tiles 0 to 3: sums (row half, column half); 4 and 5: activations; 6 and 7:
// weights.
constexpr int kActivations = 4, kWeights = 6;
// Few rows. Tiles 0 to 3: sums (panel, column half); 4: activations; 5 to 7: weights.
constexpr int kFewWeights = 5;

// Subnormal operands and results count as zero, as in tile operations.
class FlushSubnormals {
 public:
  FlushSubnormals() : former_(_mm_getcsr()) { _mm_setcsr(former_ | kFlushResults | kZeroOperands); }
  ~FlushSubnormals() { _mm_setcsr(former_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  static constexpr unsigned kFlushResults = 0x8000, kZeroOperands = 0x40;
  const unsigned former_;
};

// The lower halves of words as the upper ones. g++ 12 warns about the undefined register in the
// intrinsic without a mask.
__attribute__((target("avx512f"))) inline __m512i Upper(__m512i words) {
  return _mm512_maskz_slli_epi32(0xffff, words, 16);
}

// One row of tdpbf16ps. A product of two bf16 is exact in float32, so the chains have one rounding
// a step. Not inlined: the compiler moves arithmetic across changes of the rounding mode.
__attribute__((target("avx512f"), noinline)) void DotBf16Row(const uint8_t* a, const uint8_t* b,
                                                             uint8_t* sums) {
  const __m512i upper_half = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  __m512 lower = _mm512_setzero_ps(), upper = _mm512_setzero_ps();
  for (int k = 0; k < kTileDepth; ++k) {
    uint32_t pair;
    std::memcpy(&pair, a + 4 * k, sizeof(pair));
    const __m512i x = _mm512_set1_epi32(static_cast<int>(pair));
    const __m512i w = _mm512_loadu_si512(b + kLine * k);
    lower = _mm512_fmadd_ps(_mm512_castsi512_ps(Upper(x)), _mm512_castsi512_ps(Upper(w)), lower);
    upper = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(x, upper_half)),
                            _mm512_castsi512_ps(_mm512_and_si512(w, upper_half)), upper);
  }
  const __m512 sum = _mm512_add_ps(lower, upper);
  _mm512_storeu_ps(sums, _mm512_add_ps(_mm512_loadu_ps(sums), sum));
}

// The AMX operations that a product uses, emulated in memory. The emulation of bf16 requires
// AVX-512.
struct EmulatedTiles {
  int rows;       // of tiles of sums and of activations
  int kept_from;  // the first tile of weights
  alignas(64) uint8_t data[8][kSide][64];

  int Rows(int tile) const { return tile < kept_from ? rows : kSide; }
  template <int kTile>
  void Zero() {
    std::memset(data[kTile], 0, sizeof(data[kTile]));
  }
  template <int kTile>
  void Load(const void* from, int64_t stride) {
    for (int row = 0; row < Rows(kTile); ++row) {
      std::memcpy(data[kTile][row], static_cast<const uint8_t*>(from) + row * stride, 64);
    }
  }
  template <int kTile>
  void Store(void* to, int64_t stride) const {
    for (int row = 0; row < Rows(kTile); ++row) {
      std::memcpy(static_cast<uint8_t*>(to) + row * stride, data[kTile][row], 64);
    }
  }
  // tdpbusd: unsigned bytes of a times signed bytes of b. Not sanitized: every index is that of a
  // tile, and the checks of the innermost loop took half of the time of the tests of determinism.
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
  // tdpbf16ps.
  template <int kSums, int kA, int kB>
  void DotBf16() {
    const FlushSubnormals flush;
    for (int m = 0; m < rows; ++m) DotBf16Row(data[kA][m], data[kB][0], data[kSums][m]);
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
  template <int kSums, int kA, int kB>
  void DotBf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kA), "i"(kB));
  }
};

void ConfigureTiles(int rows, int first_weights) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.Set(tile, tile < first_weights ? rows : kSide, 64);
  LoadTileConfig(config);
}

__attribute__((target("amx-tile"))) void ReleaseTiles() { _tile_release(); }

// Words of four bytes, unsigned times signed.
struct Bytes {
  using Sum = int32_t;
  template <int kSums, int kA, int kB, typename Tiles>
  static void Dot(Tiles& tiles) {
    tiles.template DotBytes<kSums, kA, kB>();
  }
};
// Words of two bf16.
struct Bf16 {
  using Sum = float;
  template <int kSums, int kA, int kB, typename Tiles>
  static void Dot(Tiles& tiles) {
    tiles.template DotBf16<kSums, kA, kB>();
  }
};

void Prefetch(const uint8_t* first, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(first + i), _MM_HINT_T1);
  }
}

// Adds the products of 16 words of depth of a block of rows. w: the words of all 32 columns.
template <typename Words, typename Tiles>
void AddDepth(Tiles& tiles, const TileRows& x, const uint8_t* w) {
  tiles.template Load<kActivations>(x.bytes, x.row_size);
  tiles.template Load<kActivations + 1>(x.bytes + kSide * x.row_size, x.row_size);
  tiles.template Load<kWeights>(w, kPanelRow);
  tiles.template Load<kWeights + 1>(w + 4 * kSide, kPanelRow);
  Words::template Dot<0, kActivations, kWeights>(tiles);
  Words::template Dot<1, kActivations, kWeights + 1>(tiles);
  Words::template Dot<2, kActivations + 1, kWeights>(tiles);
  Words::template Dot<3, kActivations + 1, kWeights + 1>(tiles);
}

// Adds the upper, then the lower products of a group of a fold. kHalves: column halves.
template <int kHalves, typename Tiles>
void AddGroup(Tiles& tiles, const TileRows& x, const uint8_t* w, int64_t w_row) {
  tiles.template Load<kWeights>(w, w_row);
  if constexpr (kHalves == 2) tiles.template Load<kWeights + 1>(w + 4 * kSide, w_row);
  for (int part = 0; part < 2; ++part) {
    const uint8_t* first = x.bytes + part * kTileRowBytes;
    tiles.template Load<kActivations>(first, x.row_size);
    tiles.template Load<kActivations + 1>(first + kSide * x.row_size, x.row_size);
    Bf16::Dot<0, kActivations, kWeights>(tiles);
    Bf16::Dot<2, kActivations + 1, kWeights>(tiles);
    if constexpr (kHalves == 2) {
      Bf16::Dot<1, kActivations, kWeights + 1>(tiles);
      Bf16::Dot<3, kActivations + 1, kWeights + 1>(tiles);
    }
  }
}

template <int kHalves, typename Tiles>
void MultiplySplit(Tiles& tiles, const TileRows& x, const uint8_t* w, int64_t w_row, int64_t groups,
                   float* out, int64_t out_row) {
  tiles.template Zero<0>();
  tiles.template Zero<1>();
  tiles.template Zero<2>();
  tiles.template Zero<3>();
  for (int64_t g = 0; g < groups; ++g) {
    AddGroup<kHalves>(tiles, {x.bytes + 2 * kTileRowBytes * g, x.row_size},
                      w + g * kTileDepth * w_row, w_row);
  }
  const auto size = static_cast<int64_t>(sizeof(float)) * out_row;
  tiles.template Store<0>(out, size);
  tiles.template Store<2>(out + kSide * out_row, size);
  if constexpr (kHalves == 2) {
    tiles.template Store<1>(out + kSide, size);
    tiles.template Store<3>(out + kSide * out_row + kSide, size);
  }
}

// Calls add(k, words) for every 16 words of depth of a panel. After the end of the panel the words
// are zero, so that the activations there do not count.
template <typename Add>
void ForDepth(const uint8_t* w, int64_t depth, const Add& add) {
  int64_t k = 0;
  for (; k + kTileDepth <= depth; k += kTileDepth) add(k, w + k * kPanelRow);
  if (k == depth) return;
  alignas(64) uint8_t rest[kTileDepth * kPanelRow] = {};
  std::memcpy(rest, w + k * kPanelRow, static_cast<size_t>((depth - k) * kPanelRow));
  add(k, rest);
}

// The product of a block of rows and a panel. Prefetches in equal parts between the tile
// operations: at once, prefetches would wait for each other.
template <typename Words, typename Tiles>
void Multiply(Tiles& tiles, const TileRows& x, const void* w, int64_t depth, const Ahead& ahead,
              typename Words::Sum (*out)[kTileBlock]) {
  tiles.template Zero<0>();
  tiles.template Zero<1>();
  tiles.template Zero<2>();
  tiles.template Zero<3>();
  const auto* next = static_cast<const uint8_t*>(ahead.first);
  int64_t left = ahead.bytes;
  const int64_t steps = (depth + kTileDepth - 1) / kTileDepth;
  const int64_t part = (left / kLine + steps - 1) / steps * kLine;
  ForDepth(static_cast<const uint8_t*>(w), depth, [&](int64_t k, const uint8_t* words) {
    const int64_t bytes = std::min(part, left);
    Prefetch(next, bytes);
    next += bytes;
    left -= bytes;
    AddDepth<Words>(tiles, {x.bytes + 4 * k, x.row_size}, words);
  });
  constexpr int64_t kOutRow = kTileBlock * sizeof(typename Words::Sum);
  tiles.template Store<0>(&out[0][0], kOutRow);
  tiles.template Store<1>(&out[0][kSide], kOutRow);
  tiles.template Store<2>(&out[kSide][0], kOutRow);
  tiles.template Store<3>(&out[kSide][kSide], kOutRow);
}

// The products of few rows and kPanels neighbouring panels.
template <int kPanels, typename Tiles>
void MultiplyFew(Tiles& tiles, const TileRows& x, const uint8_t* w, int64_t depth,
                 float (*out)[kTileSide][kTileBlock]) {
  // The weights are read once, at memory speed, with prefetches this far ahead.
  constexpr int64_t kAhead = 8192;
  const int64_t panel = depth * kPanelRow;
  const auto add = [&]<int kPanel>(const uint8_t* words) {
    tiles.template Load<kFewWeights + kPanel>(words, kPanelRow);
    Bf16::Dot<2 * kPanel, kActivations, kFewWeights + kPanel>(tiles);
    tiles.template Load<kFewWeights + 2>(words + 4 * kSide, kPanelRow);
    Bf16::Dot<2 * kPanel + 1, kActivations, kFewWeights + 2>(tiles);
  };
  tiles.template Zero<0>();
  tiles.template Zero<1>();
  tiles.template Zero<2>();
  tiles.template Zero<3>();
  int64_t k = 0;
  for (; k + kTileDepth <= depth; k += kTileDepth) {
    const uint8_t* words = w + k * kPanelRow;
    // After the end of the panels: the next ones.
    const int64_t at = k * kPanelRow + kAhead;
    const uint8_t* ahead = w + (at < panel ? at : at + (kPanels - 1) * panel);
    Prefetch(ahead, kTileDepth * kPanelRow);
    tiles.template Load<kActivations>(x.bytes + 4 * k, x.row_size);
    add.template operator()<0>(words);
    if constexpr (kPanels == 2) {
      Prefetch(ahead + panel, kTileDepth * kPanelRow);
      add.template operator()<1>(words + panel);
    }
  }
  if (k < depth) {
    alignas(64) uint8_t rest[kTileDepth * kPanelRow] = {};
    const auto size = static_cast<size_t>((depth - k) * kPanelRow);
    std::memcpy(rest, w + k * kPanelRow, size);
    tiles.template Load<kActivations>(x.bytes + 4 * k, x.row_size);
    add.template operator()<0>(rest);
    if constexpr (kPanels == 2) {
      std::memcpy(rest, w + panel + k * kPanelRow, size);
      add.template operator()<1>(rest);
    }
  }
  constexpr int64_t kOutRow = kTileBlock * sizeof(float);
  tiles.template Store<0>(&out[0][0][0], kOutRow);
  tiles.template Store<1>(&out[0][0][kSide], kOutRow);
  if constexpr (kPanels == 2) {
    tiles.template Store<2>(&out[1][0][0], kOutRow);
    tiles.template Store<3>(&out[1][0][kSide], kOutRow);
  }
}

}  // namespace

TileSession::TileSession(TileUnit unit, int rows) : unit_(unit), rows_(rows) {
  PS_CHECK((rows > 0 && rows <= kTileSide) || rows == kTileBlock) << rows;
  if (unit_ != TileUnit::kAmx) return;
  rows == kTileBlock ? ConfigureTiles(kSide, kWeights) : ConfigureTiles(rows, kFewWeights);
}

TileSession::~TileSession() {
  if (unit_ == TileUnit::kAmx) ReleaseTiles();
}

void TileSession::Product(const TileRows& x, const int8_t* w, int64_t depth, const Ahead& ahead,
                          int32_t (*out)[kTileBlock]) const {
  if (unit_ == TileUnit::kAmx) {
    AmxTiles tiles;
    Multiply<Bytes>(tiles, x, w, depth, ahead, out);
  } else {
    EmulatedTiles tiles{kSide, kWeights, {}};
    Multiply<Bytes>(tiles, x, w, depth, ahead, out);
  }
}

void TileSession::ProductBf16(const TileRows& x, const uint32_t* w, int64_t depth,
                              const Ahead& ahead, float (*out)[kTileBlock]) const {
  if (unit_ == TileUnit::kAmx) {
    AmxTiles tiles;
    Multiply<Bf16>(tiles, x, w, depth, ahead, out);
  } else {
    EmulatedTiles tiles{kSide, kWeights, {}};
    Multiply<Bf16>(tiles, x, w, depth, ahead, out);
  }
}

void TileSession::ProductBf16(const TileRows& x, const uint32_t* w, int panels, int64_t depth,
                              float (*out)[kTileSide][kTileBlock]) const {
  PS_CHECK(rows_ <= kTileSide) << rows_;
  const auto run = [&](auto&& tiles) {
    const auto* words = reinterpret_cast<const uint8_t*>(w);
    panels == 2 ? MultiplyFew<2>(tiles, x, words, depth, out)
                : MultiplyFew<1>(tiles, x, words, depth, out);
  };
  unit_ == TileUnit::kAmx ? run(AmxTiles{}) : run(EmulatedTiles{rows_, kFewWeights, {}});
}

void TileSession::ProductSplit(const TileRows& x, const uint32_t* w, int64_t w_row, int64_t groups,
                               int columns, float* out, int64_t out_row) const {
  const auto run = [&](auto&& tiles) {
    const auto* words = reinterpret_cast<const uint8_t*>(w);
    columns == kTileBlock ? MultiplySplit<2>(tiles, x, words, 4 * w_row, groups, out, out_row)
                          : MultiplySplit<1>(tiles, x, words, 4 * w_row, groups, out, out_row);
  };
  unit_ == TileUnit::kAmx ? run(AmxTiles{}) : run(EmulatedTiles{kSide, kWeights, {}});
}

}  // namespace polysketch::cpu
