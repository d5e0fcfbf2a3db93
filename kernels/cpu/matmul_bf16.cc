// Products with bf16 weights by dot products of bf16 pairs (AVX512-BF16). Every row of activations
// is rounded to bf16 first. The instruction adds the second product of a pair to the sum, then the
// first, and rounds each sum to float32; it treats subnormal numbers as zero.
#include <immintrin.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/product.h"

// These build on one another, in this order.
// clang-format off
#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/panel_tiles.h"
#include "kernels/cpu/dot_panels.h"
// clang-format on

#if defined(PS_ISA_VNNI)

namespace {

struct Bf16Format {
  using Sum = V;
  PS_INLINE V Start(const PackedMatrix& /*w*/, int64_t /*column*/) { return Zero(); }
  PS_INLINE V Dot(V sum, I x, I w) { return DotBf16(sum, x, w); }
  PS_INLINE V Scale(const PackedMatrix& /*w*/, int64_t /*column*/) { return Zero(); }
  PS_INLINE V Value(V sum, V /*scale*/, const WordRows& /*x*/, int64_t /*row*/) { return sum; }
};

// Rounds a row; zeros fill the last vector.
void RoundRow(const float* x, int64_t width, uint8_t* out) {
  auto* to = reinterpret_cast<uint16_t*>(out);
  for (int64_t i = 0; i < width; i += kLanes) {
    const Mask mask = FirstN(static_cast<int>(std::min<int64_t>(kLanes, width - i)));
    StoreBf16(LoadMasked(x + i, mask), to + i);
  }
}

}  // namespace

void MultiplyBf16(const Product& p) {
  const int64_t in = p.w.in();
  const WordRows rounded{p.Converted(), (in + kLanes - 1) / kLanes * kLanes * 2, nullptr};
  p.ForRows(
      [&](int64_t m) { RoundRow(p.x + m * p.x_row, in, rounded.bytes + m * rounded.row_size); });
  DotPanels<Bf16Format>(p, rounded);
}

#else  // instruction sets without VNNI lack the instruction

void MultiplyBf16(const Product& /*p*/) {
  PS_CHECK(false) << "no dot products of bf16 in this instruction set";
}

#endif

#include "kernels/cpu/isa_end.h"
