// gelu for results that are rounded to 8-bit integers. Included inside the region of isa_begin.h, after
// simd.h.

// gelu in its tanh form, within 7.5e-5 of it for every x: x (1/2 + P(c)), c = x clamped to [-4, 4], P odd of
// degree 15 with P(4) just below 1/2. P minimises the largest error of x P(x) on [0, 4] (a linear program over
// its Chebyshev coefficients); beyond, where P is constant, x (1 - Phi(4)) bounds the error. A row whose
// largest element is 1 is rounded to within 3.9e-3. Half the operations of Gelu, without a division. NaN stays
// NaN.
PS_INLINE V GeluForBytes(V x) {
  const V c = Min(Set1(4.0f), Max(Set1(-4.0f), x));
  const V z = Mul(c, c);
  V p = Set1(-0x1.80e8c4p-30f);
  p = Fma(p, z, Set1(0x1.e1a8f8p-24f));
  p = Fma(p, z, Set1(-0x1.0659d6p-18f));
  p = Fma(p, z, Set1(0x1.4af024p-14f));
  p = Fma(p, z, Set1(-0x1.10d514p-10f));
  p = Fma(p, z, Set1(0x1.3c0ed2p-7f));
  p = Fma(p, z, Set1(-0x1.0e9830p-4f));
  p = Fma(p, z, Set1(0x1.981b4ep-2f));
  return Mul(x, Fma(p, c, Set1(0.5f)));
}
