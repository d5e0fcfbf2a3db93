// Products with 4-bit weights (kernels/quantize.h). The weights (integer + 8) are the unsigned
// operand of the byte dot product and the activations the signed one, so that the contribution of
// the 8 depends on the row and the group alone. The scale of a group is a signed byte times the
// unit of its column, so that sums of up to 512 groups are exact integers; such sums are added in
// order.
#include <immintrin.h>

#include <algorithm>

#include "kernels/cpu/panel_tiles.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/row_scale.h"
#include "kernels/cpu/simd.h"
#include "kernels/quantize.h"

#include "kernels/cpu/isa_begin.inc"

namespace {

// Rows of a register tile, which holds the sums of a group and those of all groups.
constexpr int kTileRowsQ4 = kPanelVectors == 2 ? 6 : 4;
constexpr int kGroupWords = kQ4Group / 8;         // words of a column in a group
constexpr int64_t kRowBytes = kPanelColumns * 4;  // bytes of a row of a panel

// Panels of a task if rows are few: a range of memory that is long enough for the hardware's
// prefetchers.
constexpr int64_t kTaskPanels = 4;

// Rows of activations as signed bytes, padded with zeros to whole groups.
struct SignedRows {
  int8_t* bytes;
  int64_t groups;
  int32_t* corrections;  // [rows][groups]: Correction
  float* scales;

  int64_t row_size() const { return groups * kQ4Group; }

  explicit SignedRows(const Product& p) : groups(Q4Groups(p.w.in())) {
    scales = reinterpret_cast<float*>(p.Converted());
    corrections = reinterpret_cast<int32_t*>(scales + p.rows);
    bytes = reinterpret_cast<int8_t*>(corrections + p.rows * groups);
  }
};

// The initial value of a sum of a group: -8 times the sum of the row's integers, or in each half of
// the word -8 times the sum of the integers that enter it.
PS_INLINE int32_t Correction(const int8_t* group) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group));
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(8), bytes);
  __m128i sums = _mm_add_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  sums = _mm_add_epi16(sums, _mm_shuffle_epi32(sums, 0x4e));
  sums = _mm_add_epi16(sums, _mm_shuffle_epi32(sums, 0xb1));
  const int32_t both = _mm_cvtsi128_si32(_mm_sub_epi16(_mm_setzero_si128(), sums));
  return kPairedSums ? both : static_cast<int16_t>(both) + (both >> 16);
}

void QuantizeSignedRow(const float* x, int64_t width, int64_t row, const SignedRows& out) {
  const QuantScale scale = RowScale(x, width);
  const V inverse = Set1(scale.inverse);
  int8_t* bytes = out.bytes + row * out.row_size();
  for (int64_t i = 0; i < out.row_size(); i += kLanes) {
    const int64_t left = std::clamp<int64_t>(width - i, 0, kLanes);
    StoreSignedBytes(Mul(LoadMasked(x + i, FirstN(static_cast<int>(left))), inverse), bytes + i);
  }
  for (int64_t g = 0; g < out.groups; ++g) {
    out.corrections[row * out.groups + g] = Correction(bytes + g * kQ4Group);
  }
  out.scales[row] = scale.scale;
}

// Groups whose scaled sums are added as integers: 512 * 127 * (8 * 127 * 32) < 2^31.
constexpr int64_t kExactGroups = 512;

// The integer sums of a register tile of MR rows and NV vectors.
template <int MR, int NV>
struct TileQ4 {
  I sums[MR][NV];

  PS_INLINE void Clear(TileQ4* t) {
#pragma GCC unroll 8
    for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) t->sums[m][n] = IntZero();
    }
  }

  // Adds group `index`; scales and words are the group's, from the tile's first column on. The sum
  // of a group fits 16 bits, so that its product with the scale is one of words. Paired sums may
  // leave 16 bits before the group's end: they wrap around, and the last one is exact.
  PS_INLINE void AddGroup(TileQ4* t, const SignedRows& x, int64_t row, int64_t index,
                          const uint8_t* scales, const uint8_t* words) {
    I acc[MR][NV];
#pragma GCC unroll 8
    for (int m = 0; m < MR; ++m) {
      const I correction = BroadcastInt(x.corrections + (row + m) * x.groups + index);
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) acc[m][n] = correction;
    }
    const int8_t* bytes = x.bytes + row * x.row_size() + index * kQ4Group;
    for (int64_t k = 0; k < kGroupWords; ++k) {
      I lower[NV], upper[NV];
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) {
        const I pairs = IntLoad(words + k * kRowBytes + n * kLanes * 4);
        lower[n] = LowerNibbles(pairs);
        upper[n] = UpperNibbles(pairs);
      }
#pragma GCC unroll 8
      for (int m = 0; m < MR; ++m) {
        const int8_t* eight = bytes + m * x.row_size() + k * 8;
        const I first = BroadcastBytes(eight), second = BroadcastBytes(eight + 4);
#pragma GCC unroll 8
        for (int n = 0; n < NV; ++n) {
          acc[m][n] = DotNibbles(DotNibbles(acc[m][n], lower[n], first), upper[n], second);
        }
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) {
      const I scale = SumFactors(reinterpret_cast<const int8_t*>(scales) + n * kLanes);
#pragma GCC unroll 8
      for (int m = 0; m < MR; ++m) t->sums[m][n] = DotWords(t->sums[m][n], acc[m][n], scale);
    }
  }
};

// Prefetches the next panel, an equal part in each group of the tiles of a panel: a tile computes
// for longer than the hardware's prefetchers look ahead.
class PanelAhead {
 public:
  PanelAhead(const PackedMatrix& w, int64_t panel, int64_t tiles, int64_t groups)
      : next_(reinterpret_cast<const char*>(w.panel<uint8_t>(panel))),
        end_(next_ + w.panel_bytes()),
        bytes_((w.panel_bytes() / (tiles * groups) + kLine) / kLine * kLine) {}

  __attribute__((always_inline)) void Prefetch() {
    const char* const last = std::min(next_ + bytes_, end_);
    for (; next_ < last; next_ += kLine) _mm_prefetch(next_, _MM_HINT_T1);
  }

 private:
  static constexpr int64_t kLine = 64;

  const char *next_, *end_;
  int64_t bytes_;  // of a group
};

template <int MR, int NV>
void PanelTileQ4(const Product& p, const SignedRows& x, int64_t row, int64_t panel,
                 int first_vector, PanelAhead* ahead) {
  using Tile = TileQ4<MR, NV>;
  V totals[MR][NV];
  for (int m = 0; m < MR; ++m) {
    for (int n = 0; n < NV; ++n) totals[m][n] = Zero();
  }
  const uint8_t* data = p.w.panel<uint8_t>(panel);
  for (int64_t first = 0; first < x.groups; first += kExactGroups) {
    Tile tile;
    Tile::Clear(&tile);
    const int64_t last = std::min(first + kExactGroups, x.groups);
    for (int64_t g = first; g < last; ++g) {
      const uint8_t* pair = data + g / 2 * kQ4PairBytes;
      const int64_t second = g % 2;
      ahead->Prefetch();
      Tile::AddGroup(&tile, x, row, g, pair + second * kPanelColumns + first_vector * kLanes,
                     pair + kQ4ScaleBytes + second * kQ4GroupBytes + first_vector * kLanes * 4);
    }
#pragma GCC unroll 8
    for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) totals[m][n] = Add(totals[m][n], ToFloat(tile.sums[m][n]));
    }
  }
  const int64_t column = panel * kPanelColumns + first_vector * kLanes;
#pragma GCC unroll 8
  for (int n = 0; n < NV; ++n) {
    const V unit = Load(p.w.scales() + column + n * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < MR; ++m) {
      Finish(p.epilogue, row + m, column + n * kLanes,
             Mul(Mul(totals[m][n], unit), Set1(x.scales[row + m])));
    }
  }
}

}  // namespace

void MultiplyQ4(const Product& p) {
  const SignedRows quantised(p);
  p.ForRows([&](int64_t m) { QuantizeSignedRow(p.x + m * p.x_row, p.w.in(), m, quantised); });
  const int64_t group = p.rows <= kTileRowsQ4 ? kTaskPanels : 1;
  p.ForPanels(group, [&](const Range& panels, const Range& rows, int) {
    const int64_t tiles = (rows.size() + kTileRowsQ4 - 1) / kTileRowsQ4 * (2 / kPanelVectors);
    for (int64_t panel = panels.first; panel < panels.last; ++panel) {
      const int64_t next = p.PanelAfter(panel, panels, group);
      PanelAhead ahead(p.w, next, p.rows == 1 ? 1 : tiles, quantised.groups);
      if (p.rows == 1) {  // both vectors at once: the panel is read front to back
        PanelTileQ4<1, 2>(p, quantised, 0, panel, 0, &ahead);
        continue;
      }
      for (int vector = 0; vector < 2; vector += kPanelVectors) {
        ForRowTiles<kTileRowsQ4>(rows, [&]<int MR>(int64_t row) {
          PanelTileQ4<MR, kPanelVectors>(p, quantised, row, panel, vector, &ahead);
        });
      }
    }
  });
}

#include "kernels/cpu/isa_end.inc"
