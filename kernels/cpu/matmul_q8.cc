// Products with 8-bit weights (kernels/quantize.h). Every row of activations is quantised to
// bytes first (integer + kByteBias). Integer sums are exact, so tiles, splits and threads change
// no bit, and all instruction sets compute the same bits.
#include <algorithm>
#include <utility>

#include "kernels/cpu/dot_panels.h"
#include "kernels/cpu/gate_lanes.h"
#include "kernels/cpu/gelu_before_rounding.h"
#include "kernels/cpu/panel_tiles.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/row_scale.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tile_panels.h"
#include "kernels/quantize.h"

#include "kernels/cpu/isa_begin.inc"

namespace {

struct Q8Format {
  using Sum = I;
  // Subtracts what the bias of every activation adds.
  PS_INLINE I Start(const PackedMatrix& w, int64_t column) {
    if constexpr (kByteBias == 0) return IntZero();
    return IntSub(IntZero(), IntLoad(w.biases() + column));
  }
  PS_INLINE I Dot(I sum, I x, I w) { return DotBytes(sum, x, w); }
  PS_INLINE V Scale(const PackedMatrix& w, int64_t column) { return Load(w.scales() + column); }
  PS_INLINE V Value(I sum, V column_scale, const WordRows& x, int64_t row) {
    return Mul(Mul(ToFloat(sum), column_scale), Set1(x.scales[row]));
  }
  using TileSum = int32_t;
  static void TileProduct(const TileSession& session, const TileRows& x, const PackedMatrix& w,
                          int64_t panel, const Ahead& ahead, TileSum (*sums)[kTileBlock]) {
    session.Product(x, w.panel<int8_t>(panel), w.depth(), ahead, sums);
  }
  PS_INLINE I FromTile(const PackedMatrix& w, int64_t column, const TileSum* sums) {
    return IntSub(IntLoad(sums), IntLoad(w.biases() + column));
  }
};

// The same with gelu of each result, while it is in registers, and the largest magnitude of each
// row.
struct Q8GeluFormat : Q8Format {
  PS_INLINE V Value(I sum, V column_scale, const WordRows& x, int64_t row) {
    const V y = GeluBeforeRounding(Q8Format::Value(sum, column_scale, x, row));
    int32_t* largest = x.magnitudes + row * kLanes;
    IntStore(MaxMagnitude(IntLoad(largest), y), largest);
    return y;
  }
};

void QuantizeRow(const float* x, int64_t width, const QuantScale& scale, uint8_t* out) {
  const V inverse = Set1(scale.inverse);
  const auto at = [&](int64_t i) __attribute__((always_inline)) {
    return Mul(Load(x + i), inverse);
  };
  int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
    StoreBytes(at(i), at(i + kLanes), at(i + 2 * kLanes), at(i + 3 * kLanes), out + i);
  }
  for (; i + kLanes <= width; i += kLanes) StoreBytes(at(i), out + i);
  // Bytes from the width on, up to a whole word, are multiplied by weights of zero; the bytes after
  // them are not read.
  if (i < width) {
    const Mask tail = FirstN(static_cast<int>(width - i));
    StoreBytes(Mul(LoadMasked(x + i, tail), inverse), out + i);
  }
}

// Minimum number of rows for tiles. With fewer rows a tile is mostly empty, and reading the weights
// takes the time. Sums are exact, so both ways compute the same bits.
constexpr int64_t kMinTileRows = 16;

// One block of rows, gelu of the result and the magnitudes of its rows. A panel's sums pass through
// gelu while they are in registers, and the processor computes the next panel's tiles meanwhile.
void TileGelu(const Product& p, const WordRows& x) {
  const PackedMatrix& w = p.w;
  const TileSession session(p.units.tiles);
  const auto rows = static_cast<int>(p.rows);
  alignas(64) int32_t sums[kTileBlock][kTileBlock];
  for (int64_t panel = 0; panel < w.panels(); ++panel) {
    Q8Format::TileProduct(session, {x.bytes, x.row_size}, w, panel, {}, sums);
    for (int n = 0; n < kTileBlock; n += kLanes) {
      const int64_t column = panel * kPanelColumns + n;
      const V scale = Q8Format::Scale(w, column);
      for (int m = 0; m < rows; ++m) {
        const I sum = Q8Format::FromTile(w, column, &sums[m][n]);
        Store(Q8GeluFormat::Value(sum, scale, x, m),
              p.epilogue.out + m * p.epilogue.out_row + column);
      }
    }
  }
}

// gelu of a product of up to kTileBlock rows, and the scales of its rows.
void MultiplyGelu(const Product& p, WordRows x, bool tiles) {
  alignas(64) int32_t magnitudes[kTileBlock * kLanes] = {};
  x.magnitudes = magnitudes;
  tiles ? TileGelu(p, x) : DotPanels<Q8GeluFormat>(p, x);
  alignas(64) float rows[kTileBlock] = {};
  for (int64_t m = 0; m < p.rows; ++m) {
    rows[m] = ReduceMagnitude(IntLoad(magnitudes + m * kLanes));
  }
  for (int64_t m = 0; m < p.rows; m += kLanes) {
    QuantScales(rows + m, static_cast<int>(std::min<int64_t>(kLanes, p.rows - m)),
                p.gelu_scales + m);
  }
}

// The memory of the quantised rows: whole blocks of rows and of bytes, as tiles read them. The
// padding has no effect on results.
WordRows QuantizedRows(const Product& p) {
  uint8_t* memory = p.Converted();
  const int64_t row_size = (p.w.in() + kTileRowBytes - 1) / kTileRowBytes * kTileRowBytes;
  const int64_t blocks = (p.rows + kTileBlock - 1) / kTileBlock * kTileBlock;
  return {memory + blocks * static_cast<int64_t>(sizeof(float)), row_size,
          reinterpret_cast<float*>(memory)};
}

// Quantises rows [first, first + count) of p.x, count <= kLanes.
void QuantizeRows(const Product& p, int64_t first, int count, const WordRows& out) {
  const int64_t in = p.w.in();
  QuantScale own[kLanes];
  const QuantScale* scales = p.x_scales == nullptr ? own : p.x_scales + first;
  if (p.x_scales == nullptr) {
    alignas(64) float magnitudes[kLanes] = {};
    for (int i = 0; i < count; ++i) magnitudes[i] = RowMagnitude(p.x + (first + i) * p.x_row, in);
    QuantScales(magnitudes, count, own);
  }
  for (int i = 0; i < count; ++i) {
    const int64_t m = first + i;
    QuantizeRow(p.x + m * p.x_row, in, scales[i], out.bytes + m * out.row_size);
    out.scales[m] = scales[i].scale;
  }
}

}  // namespace

void MultiplyQ8(const Product& p) {
  const WordRows quantised = QuantizedRows(p);
  p.ForRowRanges([&](int64_t first, int64_t last) {
    for (int64_t m = first; m < last; m += kLanes) {
      QuantizeRows(p, m, static_cast<int>(std::min<int64_t>(kLanes, last - m)), quantised);
    }
  });
  const bool tiles = p.units.tiles != TileUnit::kNone && p.rows >= kMinTileRows;
  if (p.gelu_scales != nullptr) return MultiplyGelu(p, quantised, tiles);
  tiles ? TilePanels<Q8Format>(p, quantised) : DotPanels<Q8Format>(p, quantised);
}

#include "kernels/cpu/isa_end.inc"
