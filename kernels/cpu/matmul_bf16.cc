// Products with bf16 weights by dot products of bf16 pairs. Every row of activations is rounded to
// bf16 first. An instruction adds the second product of a pair to the sum, then the first, each
// sum rounded to float32; subnormal numbers are zero to it.
#include <immintrin.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/ops.h"

// These build on one another, in this order.
// clang-format off
#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/dot_panels.h"
// clang-format on

#if defined(PS_ISA_VNNI)

namespace {

struct Bf16Format {
  using Sum = V;
  static const int8_t* Panel(const PackedMatrix& w, int64_t panel) {
    return reinterpret_cast<const int8_t*>(w.panel_bf16(panel));
  }
  static int64_t Depth(const PackedMatrix& w) { return w.depth2(); }
  PS_INLINE V Start(const PackedMatrix& /*w*/, int64_t /*column*/) { return Zero(); }
  PS_INLINE V Dot(V sum, I x, I w) { return DotBf16(sum, x, w); }
  PS_INLINE V Scale(const PackedMatrix& /*w*/, int64_t /*column*/) { return Zero(); }
  PS_INLINE V Value(V sum, V /*scale*/, const WordRows& /*x*/, int64_t /*row*/) { return sum; }
};

// Where `rows` rows of a matrix's input are rounded to.
WordRows RowsIn(uint8_t* memory, const PackedMatrix& w) {
  return {memory, (w.in() + kLanes - 1) / kLanes * kLanes * 2, nullptr};
}

// Zeros behind the width, up to whole vectors.
void RoundRow(const float* x, int64_t width, uint8_t* out) {
  auto* to = reinterpret_cast<uint16_t*>(out);
  for (int64_t i = 0; i < width; i += kLanes) {
    const Mask mask = FirstN(static_cast<int>(std::min<int64_t>(kLanes, width - i)));
    StoreBf16(LoadMasked(x + i, mask), to + i);
  }
}

}  // namespace

void MatMulBf16(Context& ctx, const float* x, int64_t rows, const PackedMatrix& w,
                const float* bias, bool accumulate, float* out) {
  const WordRows rounded = RowsIn(ctx.Shared(ConvertedBytes(rows, w.in())), w);
  ctx.ParallelRows(rows, 1 + 16384 / w.in(), [&](int64_t first, int64_t last, int) {
    for (int64_t m = first; m < last; ++m) {
      RoundRow(x + m * w.in(), w.in(), rounded.bytes + m * rounded.row_size);
    }
  });
  DotPanels<Bf16Format>(ctx, rounded, rows, w, {bias, accumulate, out, w.out(), w.out()});
}

void MatMulRowsBf16(const float* x, int64_t x_row, int rows, const PackedMatrix& w,
                    uint8_t* scratch, float* out, int64_t out_row) {
  const WordRows rounded = RowsIn(scratch, w);
  for (int m = 0; m < rows; ++m) {
    RoundRow(x + m * x_row, w.in(), rounded.bytes + m * rounded.row_size);
  }
  DotPanelsAlone<Bf16Format>(rounded, rows, w,
                             {nullptr, false, out, out_row, w.panels() * kPanelColumns});
}

#else  // no set without VNNI has the instruction

void MatMulBf16(Context& /*ctx*/, const float* /*x*/, int64_t /*rows*/, const PackedMatrix& /*w*/,
                const float* /*bias*/, bool /*accumulate*/, float* /*out*/) {
  PS_CHECK(false) << "no dot products of bf16 in this instruction set";
}

void MatMulRowsBf16(const float* /*x*/, int64_t /*x_row*/, int /*rows*/, const PackedMatrix& /*w*/,
                    uint8_t* /*scratch*/, float* /*out*/, int64_t /*out_row*/) {
  PS_CHECK(false) << "no dot products of bf16 in this instruction set";
}

#endif

#include "kernels/cpu/isa_end.h"
