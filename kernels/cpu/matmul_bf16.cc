// Products with bf16 weights by AMX tiles, or by dot products of bf16 pairs (AVX512-BF16). Every
// row of activations is rounded to bf16 first. The two units order a sum differently
// (amx_product.h), so that one of them computes products of any number of rows. The dot product
// adds the second product of a pair to the sum, then the first, and rounds each sum to float32; it
// treats subnormal numbers as zero.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/cpu/dot_panels.h"
#include "kernels/cpu/gate_lanes.h"
#include "kernels/cpu/gelu_before_rounding.h"
#include "kernels/cpu/panel_tiles.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tile_panels.h"

#include "kernels/cpu/isa_begin.inc"

#if defined(PS_ISA_VNNI)

namespace {

struct Bf16Format {
  using Sum = V;
  PS_INLINE V Start(const PackedMatrix& /*w*/, int64_t /*column*/) { return Zero(); }
  PS_INLINE V Dot(V sum, I x, I w) { return DotBf16(sum, x, w); }
  PS_INLINE V Scale(const PackedMatrix& /*w*/, int64_t /*column*/) { return Zero(); }
  PS_INLINE V Value(V sum, V /*scale*/, const WordRows& /*x*/, int64_t /*row*/) { return sum; }
  using TileSum = float;
  static void TileProduct(const TileSession& session, const TileRows& x, const PackedMatrix& w,
                          int64_t panel, const Ahead& ahead, TileSum (*sums)[kTileBlock]) {
    session.ProductBf16(x, w.panel<uint32_t>(panel), w.depth(), ahead, sums);
  }
  PS_INLINE V FromTile(const PackedMatrix& /*w*/, int64_t /*column*/, const TileSum* sums) {
    return Load(sums);
  }
};

// The same with gelu of each result, while it is in registers.
struct Bf16GeluFormat : Bf16Format {
  PS_INLINE V Value(V sum, V /*scale*/, const WordRows& /*x*/, int64_t /*row*/) {
    return GeluBeforeRounding(sum);
  }
};

// Rounds a row; zeros fill the row up to `size` bytes.
void RoundRow(const float* x, int64_t width, int64_t size, uint8_t* out) {
  auto* to = reinterpret_cast<uint16_t*>(out);
  for (int64_t i = 0; i < size / 2; i += kLanes) {
    const auto left = static_cast<int>(std::clamp<int64_t>(width - i, 0, kLanes));
    StoreBf16(LoadMasked(x + i, FirstN(left)), to + i);
  }
}

// Up to kTileSide rows times panels, two neighbouring ones at a time. A tile has as many rows as
// the product, so that the activations of one row are one cache line.
template <typename Format>
void TileFewRows(const Product& p, const WordRows& x) {
  const int64_t group = p.context == nullptr ? p.w.panels() : kSingleRowPanels;
  p.ForPanels(group, [&](const Range& range, const Range& /*rows*/, int) {
    const TileSession session(p.units.tiles, static_cast<int>(p.rows));
    alignas(64) float sums[2][kTileSide][kTileBlock];
    for (int64_t panel = range.first; panel < range.last; panel += 2) {
      const int count = static_cast<int>(std::min<int64_t>(2, range.last - panel));
      session.ProductBf16({x.bytes, x.row_size}, p.w.panel<uint32_t>(panel), count, p.w.depth(),
                          sums);
      for (int i = 0; i < count; ++i) {
        for (int64_t m = 0; m < p.rows; ++m) {
          FinishTileRow<Format>(p, x, m, (panel + i) * kPanelColumns, sums[i][m]);
        }
      }
    }
  });
}

template <typename Format>
void MultiplyRounded(const Product& p, const WordRows& x) {
  if (p.units.tiles == TileUnit::kNone) return DotPanels<Format>(p, x);
  if (p.rows <= kTileSide) return TileFewRows<Format>(p, x);
  TilePanels<Format>(p, x);
}

}  // namespace

void MultiplyBf16(const Product& p) {
  const int64_t in = p.w.in();
  const int64_t row_size = (2 * in + kTileRowBytes - 1) / kTileRowBytes * kTileRowBytes;
  const WordRows rounded{p.Converted(), row_size, nullptr};
  p.ForRows(
      [&](int64_t m) { RoundRow(p.x + m * p.x_row, in, row_size, rounded.bytes + m * row_size); });
  p.gelu_scales != nullptr ? MultiplyRounded<Bf16GeluFormat>(p, rounded)
                           : MultiplyRounded<Bf16Format>(p, rounded);
}

#else  // instruction sets without VNNI lack the instructions

void MultiplyBf16(const Product& /*p*/) {
  PS_CHECK(false) << "neither tiles nor dot products of bf16 in this instruction set";
}

#endif

#include "kernels/cpu/isa_end.inc"
