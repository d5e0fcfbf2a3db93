#include "kernels/cpu/gate_lanes.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/simd.h"

#include "kernels/cpu/isa_begin.inc"

void GeluArray(const float* x, int64_t size, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) Store(Gelu(Load(x + i)), out + i);
  if (i < size) {
    const Mask mask = FirstN(static_cast<int>(size - i));
    StoreMasked(Gelu(LoadMasked(x + i, mask)), out + i, mask);
  }
}

namespace {

template <GateKind kGate>
void GateRow(const float* up, int hidden, float* out) {
  const float* gate = up + hidden;
  int i = 0;
  for (; i + kLanes <= hidden; i += kLanes) {
    Store(GateLanes<kGate>(Load(up + i), Load(gate + i)), out + i);
  }
  if (i < hidden) {
    const Mask mask = FirstN(hidden - i);
    StoreMasked(GateLanes<kGate>(LoadMasked(up + i, mask), LoadMasked(gate + i, mask)), out + i,
                mask);
  }
}

}  // namespace

void CpuBackend::Gate(GateKind gate, const float* up, int64_t rows, int hidden, float* out) {
  const auto run = gate == GateKind::kGelu ? GateRow<GateKind::kGelu> : GateRow<GateKind::kSilu>;
  context_.ParallelRows(rows, 2, [&](int64_t first, int64_t last, int) {
    if (gate == GateKind::kUngatedGelu) {
      return GeluArray(up + first * hidden, (last - first) * hidden, out + first * hidden);
    }
    for (int64_t m = first; m < last; ++m) run(up + m * 2 * hidden, hidden, out + m * hidden);
  });
}

#include "kernels/cpu/isa_end.inc"
