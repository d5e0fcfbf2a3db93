// The gate of an MLP.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/matrix.h"

#include "kernels/cpu/isa_begin.inc"

// u * gate(g).
template <GateKind kGate>
PS_INLINE V GateLanes(V u, V g) {
  if constexpr (kGate == GateKind::kGelu) {
    return Mul(u, Gelu(g));
  } else {
    return Mul(u, Silu(g));
  }
}

#include "kernels/cpu/isa_end.inc"
