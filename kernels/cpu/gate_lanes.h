// The gate of an MLP. Included inside the region of isa_begin.h, after simd.h.

// u * gate(g).
template <GateKind kGate>
PS_INLINE V GateLanes(V u, V g) {
  if constexpr (kGate == GateKind::kGelu) {
    return Mul(u, Gelu(g));
  } else {
    return Mul(u, Silu(g));
  }
}
