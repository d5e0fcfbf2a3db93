// gelu for results that are rounded to 8-bit integers or to bf16. Included inside the region of
// isa_begin.h, after simd.h.

// gelu in its tanh form, within 1e-5 + 4e-6 |x| of it: x (1/2 + P(c)), c = x clamped to [-4.4,
// 4.4], P odd of degree 19 with P(4.4) = 1/2. P minimises the largest error of x P(x) on [0, 4.4],
// 9e-6 (a linear program over its Chebyshev coefficients). Beyond, P is constant and gelu is 0 or x
// to within 9e-6. The second term of the bound is the rounding of P where its terms cancel. A row
// whose largest element is 1 is rounded to within 3.9e-3 or, its elements near 1, to 2e-3; a larger
// error of gelu would round more elements the other way (tests/engine/model/golden_test.cc). Two
// thirds of the operations of Gelu, without a division. NaN stays NaN.
PS_INLINE V GeluBeforeRounding(V x) {
  const V c = Min(Set1(4.4f), Max(Set1(-4.4f), x));
  const V z = Mul(c, c);
  V p = Set1(-0x1.1acd9ep-39f);
  p = Fma(p, z, Set1(0x1.00f8a6p-32f));
  p = Fma(p, z, Set1(-0x1.9f9142p-27f));
  p = Fma(p, z, Set1(0x1.8d6a30p-22f));
  p = Fma(p, z, Set1(-0x1.f9eddep-18f));
  p = Fma(p, z, Set1(0x1.cbbe16p-14f));
  p = Fma(p, z, Set1(-0x1.393f40p-10f));
  p = Fma(p, z, Set1(0x1.4a49c6p-7f));
  p = Fma(p, z, Set1(-0x1.1119c4p-4f));
  p = Fma(p, z, Set1(0x1.9873a8p-2f));
  return Mul(x, Fma(p, c, Set1(0.5f)));
}
