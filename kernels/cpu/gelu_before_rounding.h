// gelu for results that are rounded to 8-bit integers or to bf16.
//
// gelu in its tanh form, within 1e-5 + 4e-6 |x| of it. A row whose largest element is 1 is rounded
// to within 3.9e-3 or, its elements near 1, to 2e-3; a larger error of gelu would round more
// elements the other way (tests/engine/model/golden_test.cc). NaN stays NaN.
#pragma once

#include "kernels/cpu/simd.h"

#include "kernels/cpu/isa_begin.inc"

#if defined(PS_ISA_AVX512)

// x / 2 + p(|x|): p is quadratic in each of 31 pieces of equal length, centred at multiples of
// 1 / kPiecesOfOne, and |x| / 2 beyond them, from 4.25 on. In each piece p minimises the largest
// error over 1e-5 + 4e-6 |x|, which is 0.85 at most (Remez exchange in float64). Half the
// operations of the polynomial below, and lookups have a port of their own.
alignas(64) static constexpr float kGeluPieces[3][32] = {
    {-0x1.a6021ep-24f, -0x1.077964p-14f, -0x1.239b40p-10f, -0x1.6759bap-8f, -0x1.0b20b2p-6f,
     -0x1.2b8e02p-5f,  -0x1.17527cp-4f,  -0x1.c817aep-4f,  -0x1.503612p-3f, -0x1.c88740p-3f,
     -0x1.2160dap-2f,  -0x1.59da10p-2f,  -0x1.887c42p-2f,  -0x1.a936f6p-2f, -0x1.b99826p-2f,
     -0x1.b8f986p-2f,  -0x1.a86a0cp-2f,  -0x1.8a5ae4p-2f,  -0x1.622bd4p-2f, -0x1.33abf6p-2f,
     -0x1.02a0a6p-2f,  -0x1.a4c3fep-3f,  -0x1.4b2c42p-3f,  -0x1.f839aap-4f, -0x1.7314d8p-4f,
     -0x1.07d7eap-4f,  -0x1.6a3898p-5f,  -0x1.dfb60cp-6f,  -0x1.322ceap-6f, -0x1.7860eap-7f,
     -0x1.bd2a12p-8f,  0x0.0p+0f},
    {0x1.60be14p-16f, 0x1.6ea38ep-10f, 0x1.6a9016p-7f, 0x1.25a8c2p-5f, 0x1.47a892p-4f,
     0x1.27e9b8p-3f,  0x1.d0db92p-3f,  0x1.4a0d7ap-2f, 0x1.b1a88cp-2f, 0x1.0bb25cp-1f,
     0x1.39f3a6p-1f,  0x1.60a3f2p-1f,  0x1.7dd3a4p-1f, 0x1.90b0ecp-1f, 0x1.997544p-1f,
     0x1.99322cp-1f,  0x1.918ef8p-1f,  0x1.848072p-1f, 0x1.74079cp-1f, 0x1.61fda0p-1f,
     0x1.4fef58p-1f,  0x1.3f0956p-1f,  0x1.3012c4p-1f, 0x1.23745cp-1f, 0x1.1947b4p-1f,
     0x1.116b48p-1f,  0x1.0b977cp-1f,  0x1.0771d2p-1f, 0x1.049c54p-1f, 0x1.02c05ap-1f,
     0x1.0194a2p-1f,  0x1.000000p-1f},
    {0x1.97eb04p-2f,   0x1.903e16p-2f,  0x1.794754p-2f,   0x1.553172p-2f,   0x1.2701bep-2f,
     0x1.e4cdbap-3f,   0x1.76906ep-3f,  0x1.0aaedep-3f,   0x1.4ed0c8p-4f,   0x1.4570fcp-5f,
     0x1.6a76d8p-8f,   -0x1.4d89b6p-6f, -0x1.38ec8ep-5f,  -0x1.8feb22p-5f,  -0x1.b575d0p-5f,
     -0x1.b49962p-5f,  -0x1.986b1ep-5f, -0x1.6b0b38p-5f,  -0x1.3505e4p-5f,  -0x1.fa1204p-6f,
     -0x1.8fb536p-6f,  -0x1.30fff6p-6f, -0x1.c20dd6p-7f,  -0x1.4125bcp-7f,  -0x1.bb3f60p-8f,
     -0x1.27b916p-8f,  -0x1.7d49ecp-9f, -0x1.dab870p-10f, -0x1.1d2772p-10f, -0x1.4a4762p-11f,
     -0x1.707e84p-12f, 0x0.0p+0f},
};

PS_INLINE V GeluBeforeRounding(V x) {
  constexpr float kPiecesOfOne = 0x1.cb4b4cp+2f;
  constexpr float kInteger = 0x1p+23f;  // added to it, a number is rounded to its lowest bits
  const V u = Abs(x);
  const V piece = Min(Fma(u, Set1(kPiecesOfOne), Set1(kInteger)), Set1(kInteger + 31));
  V p = Lookup(kGeluPieces[2], piece);
  p = Fma(p, u, Lookup(kGeluPieces[1], piece));
  p = Fma(p, u, Lookup(kGeluPieces[0], piece));
  return Fma(x, Set1(0.5f), p);
}

#else

// x (1/2 + P(c)), c = x clamped to [-4.4, 4.4], P odd of degree 19 with P(4.4) = 1/2. P minimises
// the largest error of x P(x) on [0, 4.4], 9e-6 (a linear program over its Chebyshev coefficients).
// Beyond, P is constant and gelu is 0 or x to within 9e-6. The second term of the bound is the
// rounding of P where its terms cancel. Two thirds of the operations of Gelu, without a division.
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

#endif

#include "kernels/cpu/isa_end.inc"
