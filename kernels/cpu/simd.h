// Vectors of sixteen float lanes: one register with AVX-512, two with AVX2. Both use the same
// operations in the same order, so an op is written once and all instruction sets round alike.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/isa_name.h"

#include "kernels/cpu/isa_begin.inc"

#define PS_INLINE static inline __attribute__((always_inline))

constexpr int kLanes = 16;

#if defined(PS_ISA_AVX512)

// Rows of a register tile of NV vectors. The accumulators, NV operands of B and one broadcast fill
// the 32 registers.
template <int NV>
constexpr int kTileRows = NV >= 4 ? 6 : 12;
constexpr int kMaxTileVectors = 4;
constexpr int kPanelVectors = 2;  // vectors of a 32-column weight panel in one tile
// Panels that a single row multiplies at a time: 8 accumulators cover the latency of FMA.
constexpr int kSingleRowPanels = 4;
// Vectors of columns in a product of one row (register_tile.h; of 16-bit integers, integer_tile.h):
// a broadcast serves them all.
constexpr int kSingleRowVectors = 4;

struct V {
  __m512 v;
};
struct Mask {
  __mmask16 m;
};

PS_INLINE V Zero() { return {_mm512_setzero_ps()}; }
PS_INLINE V Set1(float x) { return {_mm512_set1_ps(x)}; }
PS_INLINE V Load(const float* p) { return {_mm512_loadu_ps(p)}; }
PS_INLINE void Store(V a, float* p) { _mm512_storeu_ps(p, a.v); }
// The first n lanes, n in [0, 16]; the others are false.
PS_INLINE Mask FirstN(int n) { return {static_cast<__mmask16>((1u << n) - 1)}; }
PS_INLINE V LoadMasked(const float* p, Mask k) { return {_mm512_maskz_loadu_ps(k.m, p)}; }
PS_INLINE void StoreMasked(V a, float* p, Mask k) { _mm512_mask_storeu_ps(p, k.m, a.v); }
// Lanes of a where the mask is true, +0 elsewhere.
PS_INLINE V ZeroUnless(Mask k, V a) { return {_mm512_maskz_mov_ps(k.m, a.v)}; }
PS_INLINE V Select(Mask k, V yes, V no) { return {_mm512_mask_mov_ps(no.v, k.m, yes.v)}; }
PS_INLINE Mask Less(V a, V b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
PS_INLINE V Add(V a, V b) { return {_mm512_add_ps(a.v, b.v)}; }
PS_INLINE V Sub(V a, V b) { return {_mm512_sub_ps(a.v, b.v)}; }
PS_INLINE V Mul(V a, V b) { return {_mm512_mul_ps(a.v, b.v)}; }
PS_INLINE V Div(V a, V b) { return {_mm512_div_ps(a.v, b.v)}; }
PS_INLINE V Sqrt(V a) { return {_mm512_sqrt_ps(a.v)}; }
PS_INLINE V Fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
PS_INLINE V Fnma(V a, V b, V c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
// If b is NaN, the result is NaN, as in maxps.
PS_INLINE V Max(V a, V b) { return {_mm512_max_ps(a.v, b.v)}; }
PS_INLINE V Min(V a, V b) { return {_mm512_min_ps(a.v, b.v)}; }
PS_INLINE V Abs(V a) { return {_mm512_abs_ps(a.v)}; }
PS_INLINE V Round(V a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// table[n mod 32], n the integer in the lowest bits of each lane.
PS_INLINE V Lookup(const float* table, V n) {
  return {_mm512_permutex2var_ps(_mm512_loadu_ps(table), _mm512_castps_si512(n.v),
                                 _mm512_loadu_ps(table + 16))};
}
// 2^n for integral n in [-126, 127].
PS_INLINE V Exp2Integer(V n) {
  const __m512i bits = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 23))};
}
// p 2^n for integral n, rounded once.
PS_INLINE V TimesExp2(V p, V n) { return {_mm512_scalef_ps(p.v, n.v)}; }
PS_INLINE V LoadBf16(const uint16_t* p) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
PS_INLINE V LoadF16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// To nearest, ties to even.
PS_INLINE void StoreF16(V a, uint16_t* p) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
PS_INLINE V LoadSignedBytes(const int8_t* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// The lower or upper halves of sixteen 32-bit words, which are pairs of bf16.
PS_INLINE V LoadBf16Lower(const uint32_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
PS_INLINE V LoadBf16Upper(const uint32_t* p) {
  return {_mm512_castsi512_ps(
      _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
// Joins and splits the two 16-bit planes of float32 values (kernels/state_planes.h).
PS_INLINE V LoadPlanes(const uint16_t* upper, const uint16_t* lower) {
  const __m512i hi =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(upper)));
  const __m512i lo =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(lower)));
  const __m512i exact_hi = _mm512_sub_epi32(hi, _mm512_srli_epi32(lo, 15));
  return {_mm512_castsi512_ps(_mm512_or_si512(_mm512_slli_epi32(exact_hi, 16), lo))};
}
PS_INLINE void StorePlanes(V a, uint16_t* upper, uint16_t* lower) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i hi = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x8000)), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(upper), _mm512_cvtepi32_epi16(hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lower), _mm512_cvtepi32_epi16(bits));
}
// Rounded to bf16 as FloatToBf16 does: ties to even, NaN stays NaN.
PS_INLINE void StoreBf16(V a, uint16_t* p) {
  const __m512i bits = _mm512_castps_si512(a.v), upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(
      _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, quiet)));
}
// Splits a and b into sums of two bf16. The upper part is x cut to bf16, the lower one the rest,
// rounded to nearest: together they are off by up to 2^-16 |x|. Writes 32 upper, then 32 lower
// parts.
PS_INLINE void StoreSplitBf16(V a, V b, void* p) {
  const __m512i upper_half = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const __m512i odd = _mm512_add_epi16(
      _mm512_slli_epi16(_mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17,
                                         16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                        1),
      _mm512_set1_epi16(1));
  const auto rest = [&](__m512 x) __attribute__((always_inline)) {
    const __m512i upper = _mm512_and_si512(_mm512_castps_si512(x), upper_half);
    const __m512i bits = _mm512_castps_si512(_mm512_sub_ps(x, _mm512_castsi512_ps(upper)));
    return _mm512_add_epi32(bits, _mm512_set1_epi32(0x8000));
  };
  const __m512i upper =
      _mm512_permutex2var_epi16(_mm512_castps_si512(a.v), odd, _mm512_castps_si512(b.v));
  const __m512i lower = _mm512_permutex2var_epi16(rest(a.v), odd, rest(b.v));
  _mm512_storeu_si512(p, upper);
  _mm512_storeu_si512(static_cast<uint8_t*>(p) + 64, lower);
}
PS_INLINE __m512i Widen16(const uint16_t* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// Writes words of two bf16: element i of a, then element i of b.
PS_INLINE void StoreBf16Pairs(const uint16_t* a, const uint16_t* b, uint32_t* p) {
  _mm512_storeu_si512(p, _mm512_or_si512(Widen16(a), _mm512_slli_epi32(Widen16(b), 16)));
}
// Sixteen signed bytes as bf16, exactly.
PS_INLINE void StoreBytesAsBf16(const int8_t* bytes, uint16_t* p) {
  const __m512i lanes =
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  StoreBf16({_mm512_cvtepi32_ps(lanes)}, p);
}
// Exchanges lane j of rows[i] with lane i of rows[j].
PS_INLINE void Transpose(V (&rows)[kLanes]) {
  __m512 t[kLanes];
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 4) {
    const __m512 a = _mm512_unpacklo_ps(rows[i].v, rows[i + 1].v),
                 b = _mm512_unpackhi_ps(rows[i].v, rows[i + 1].v),
                 c = _mm512_unpacklo_ps(rows[i + 2].v, rows[i + 3].v),
                 d = _mm512_unpackhi_ps(rows[i + 2].v, rows[i + 3].v);
    t[i] = _mm512_shuffle_ps(a, c, 0x44);
    t[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
    t[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
    t[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
  }
  // Quarter q of t[4 g + c] is column 4 q + c of rows 4 g to 4 g + 3. Exchanges q and g.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512 even_low = _mm512_shuffle_f32x4(t[c], t[4 + c], 0x88),
                 odd_low = _mm512_shuffle_f32x4(t[c], t[4 + c], 0xdd),
                 even_high = _mm512_shuffle_f32x4(t[8 + c], t[12 + c], 0x88),
                 odd_high = _mm512_shuffle_f32x4(t[8 + c], t[12 + c], 0xdd);
    rows[c].v = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
    rows[4 + c].v = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
    rows[8 + c].v = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
    rows[12 + c].v = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
  }
}
PS_INLINE V Halves(__m256 lower, __m256 upper) {
  return {_mm512_insertf32x8(_mm512_castps256_ps512(lower), upper, 1)};
}
PS_INLINE __m256 LowerHalf(V a) { return _mm512_castps512_ps256(a.v); }
PS_INLINE __m256 UpperHalf(V a) { return _mm512_extractf32x8_ps(a.v, 1); }

// Sixteen int32 lanes.
struct I {
  __m512i v;
};
PS_INLINE I IntZero() { return {_mm512_setzero_si512()}; }
PS_INLINE I IntLoad(const void* p) { return {_mm512_loadu_si512(p)}; }
PS_INLINE void IntStore(I a, void* p) { _mm512_storeu_si512(p, a.v); }
PS_INLINE I IntAdd(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
PS_INLINE I IntSub(I a, I b) { return {_mm512_sub_epi32(a.v, b.v)}; }
PS_INLINE V ToFloat(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
// The lower or upper four bits of every byte.
PS_INLINE I LowerNibbles(I a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(0xf))}; }
PS_INLINE I UpperNibbles(I a) {
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(0xf))};
}
PS_INLINE I BroadcastInt(const int32_t* p) { return {_mm512_set1_epi32(*p)}; }
// Copies four bytes to every lane.
PS_INLINE I BroadcastBytes(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return {_mm512_set1_epi32(word)};
}
// BroadcastBytes(p + kRow * stride), kRow < 12, with p and at most one of the strides in registers:
// odd[i] = (2 i + 1) * stride. g++ gives each row of a tile a pointer of its own, of which a third
// are in memory or in vector registers.
template <int kRow>
PS_INLINE I BroadcastRow(const uint8_t* p, const int64_t (&odd)[6]) {
  if constexpr (kRow == 0) {
    return BroadcastBytes(p);
  } else {
    constexpr int kScale = kRow & -kRow;
    I out;
    asm("vpbroadcastd (%1,%2,%c3), %0"
        : "=v"(out.v)
        : "r"(p), "r"(odd[kRow / kScale / 2]), "i"(kScale),
          "m"(*reinterpret_cast<const uint8_t(*)[1 << 30]>(p)));
    return out;
  }
}
// What StoreBytes adds to an integer: DotBytes multiplies unsigned bytes by signed ones.
constexpr int kByteBias = 128;
// Adds the four products of bytes of x (StoreBytes) and signed bytes of w in each lane, exactly.
PS_INLINE I DotBytes(I acc, I x, I w) {
#if defined(PS_ISA_VNNI)
  // Not the intrinsic: with it g++ 12 keeps the accumulators of a tile in memory, at half the
  // speed.
  asm("vpdpbusd %2, %1, %0" : "+v"(acc.v) : "v"(x.v), "v"(w.v));
  return acc;
#else
  // Even and odd bytes as 16-bit numbers: 255 * 127 * 2 fits madd's 32-bit sums (and not maddubs'
  // 16-bit ones).
  const __m512i x_even = _mm512_and_si512(x.v, _mm512_set1_epi16(0xff)),
                x_odd = _mm512_srli_epi16(x.v, 8);
  const __m512i w_even = _mm512_srai_epi16(_mm512_slli_epi16(w.v, 8), 8),
                w_odd = _mm512_srai_epi16(w.v, 8);
  const __m512i sum =
      _mm512_add_epi32(_mm512_madd_epi16(x_even, w_even), _mm512_madd_epi16(x_odd, w_odd));
  return {_mm512_add_epi32(acc.v, sum)};
#endif
}
// Adds the four products of nibbles and signed bytes of x in each lane, exactly: to a 32-bit sum,
// or each two products to one of a pair of 16-bit sums.
#if defined(PS_ISA_VNNI)
constexpr bool kPairedSums = false;
PS_INLINE I DotNibbles(I acc, I nibbles, I x) { return DotBytes(acc, nibbles, x); }
#else
constexpr bool kPairedSums = true;
PS_INLINE I DotNibbles(I acc, I nibbles, I x) {
  // Not intrinsics: g++ 12 adds all products of a group in an order of its own, from memory.
  __m512i products;
  asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
      : "+v"(acc.v), "=&v"(products)
      : "v"(nibbles.v), "v"(x.v));
  return acc;
}
#endif
#if defined(PS_ISA_VNNI)
// Adds the two products of bf16 in each lane, the upper one first. Requires AVX512-BF16
// (product_units.h).
PS_INLINE V DotBf16(V acc, I x, I w) {
  // Not the intrinsic, for the reason in DotBytes.
  asm("vdpbf16ps %2, %1, %0" : "+v"(acc.v) : "v"(x.v), "v"(w.v));
  return acc;
}
#endif
// Running maximum of |x|, compared by bits: NaN is the largest.
PS_INLINE I MaxMagnitude(I acc, V x) {
  const __m512i bits = _mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(0x7fffffff));
  return {_mm512_max_epi32(acc.v, bits)};
}
PS_INLINE float ReduceMagnitude(I a) {
  return __builtin_bit_cast(float, _mm512_reduce_max_epi32(a.v));
}
// Nearest integers + kByteBias as bytes; |x| <= 127.5.
PS_INLINE void StoreBytes(V x, uint8_t* p) {
  const __m512i q = _mm512_add_epi32(_mm512_cvtps_epi32(x.v), _mm512_set1_epi32(128));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(q));
}
// The same of four vectors: instructions that narrow one vector are slower than those that pack
// two.
PS_INLINE void StoreBytes(V a, V b, V c, V d, uint8_t* p) {
  const __m512i words = _mm512_packs_epi32(_mm512_cvtps_epi32(a.v), _mm512_cvtps_epi32(b.v)),
                others = _mm512_packs_epi32(_mm512_cvtps_epi32(c.v), _mm512_cvtps_epi32(d.v));
  // A 128-bit lane has four bytes of each vector.
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(words, others));
  _mm512_storeu_si512(p, _mm512_xor_si512(bytes, _mm512_set1_epi8(-128)));
}
// Nearest integers as signed bytes; |x| <= 127.5.
PS_INLINE void StoreSignedBytes(V x, int8_t* p) {
  const __m512i q = _mm512_cvtps_epi32(x.v);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(q));
}
// Pairs of 16-bit integers in each lane. Widens 32 signed bytes to them.
PS_INLINE I WidenBytes(const int8_t* p) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// Sixteen signed bytes as factors of sums of DotNibbles: each widened to the first word of its
// lane, the second is 0, or to both words.
PS_INLINE I SumFactors(const int8_t* p) {
  const __m512i lanes = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m512i first = _mm512_and_si512(lanes, _mm512_set1_epi32(0xffff));
  return {kPairedSums ? _mm512_or_si512(first, _mm512_slli_epi32(lanes, 16)) : first};
}
// Adds the two products of 16-bit integers in each lane, exactly.
PS_INLINE I DotWords(I acc, I x, I w) {
#if defined(PS_ISA_VNNI)
  // Not the intrinsic, for the reason in DotBytes.
  asm("vpdpwssd %2, %1, %0" : "+v"(acc.v) : "v"(x.v), "v"(w.v));
  return acc;
#else
  return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(x.v, w.v))};
#endif
}
// Nearest integers of a and b as pairs of signed bytes, a first; |a|, |b| <= 127.5.
PS_INLINE void StoreBytePairs(V a, V b, int8_t* p) {
  const __m512i low = _mm512_and_si512(_mm512_cvtps_epi32(a.v), _mm512_set1_epi32(0xff));
  const __m512i pairs = _mm512_or_si512(low, _mm512_slli_epi32(_mm512_cvtps_epi32(b.v), 8));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(pairs));
}
// Nearest integers with 16 bits; |x| <= 32767.5.
PS_INLINE void StoreSignedWords(V x, int16_t* p) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x.v)));
}
PS_INLINE void StoreSignedWords(V a, V b, int16_t* p) {
  const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
  const __m512i words = _mm512_packs_epi32(_mm512_cvtps_epi32(a.v), _mm512_cvtps_epi32(b.v));
  _mm512_storeu_si512(p, _mm512_permutexvar_epi64(order, words));
}

#else  // AVX2

template <int NV>
constexpr int kTileRows = NV >= 2 ? 2 : 6;
constexpr int kMaxTileVectors = 1;
constexpr int kPanelVectors = 1;
constexpr int kSingleRowPanels = 2;
constexpr int kSingleRowVectors = 4;

struct V {
  __m256 lo, hi;
};
struct Mask {
  __m256 lo, hi;  // all bits of a lane are set or clear
};

PS_INLINE V Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
PS_INLINE V Set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
PS_INLINE V Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
PS_INLINE void Store(V a, float* p) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
PS_INLINE Mask FirstN(int n) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lanes)),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lanes))};
}
PS_INLINE V LoadMasked(const float* p, Mask k) {
  return {_mm256_maskload_ps(p, _mm256_castps_si256(k.lo)),
          _mm256_maskload_ps(p + 8, _mm256_castps_si256(k.hi))};
}
PS_INLINE void StoreMasked(V a, float* p, Mask k) {
  _mm256_maskstore_ps(p, _mm256_castps_si256(k.lo), a.lo);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(k.hi), a.hi);
}
PS_INLINE V ZeroUnless(Mask k, V a) {
  return {_mm256_and_ps(k.lo, a.lo), _mm256_and_ps(k.hi, a.hi)};
}
PS_INLINE V Select(Mask k, V yes, V no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, k.lo), _mm256_blendv_ps(no.hi, yes.hi, k.hi)};
}
PS_INLINE Mask Less(V a, V b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
PS_INLINE V Add(V a, V b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
PS_INLINE V Sub(V a, V b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
PS_INLINE V Mul(V a, V b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
PS_INLINE V Div(V a, V b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
PS_INLINE V Sqrt(V a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
PS_INLINE V Fma(V a, V b, V c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
PS_INLINE V Fnma(V a, V b, V c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
PS_INLINE V Max(V a, V b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
PS_INLINE V Min(V a, V b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
PS_INLINE V Abs(V a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
PS_INLINE V Round(V a) {
  return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
PS_INLINE __m256 Exp2Half(__m256 n) {
  const __m256i bits = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 23));
}
PS_INLINE V Exp2Integer(V n) { return {Exp2Half(n.lo), Exp2Half(n.hi)}; }
// For p in [1/2, 2) and n in [-252, 254]: the first product is exact.
PS_INLINE V TimesExp2(V p, V n) {
  const V half = Round(Mul(n, Set1(0.5f)));
  return Mul(Mul(p, Exp2Integer(half)), Exp2Integer(Sub(n, half)));
}
PS_INLINE __m256i Widen16(const uint16_t* p) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
PS_INLINE V LoadBf16(const uint16_t* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(Widen16(p), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(Widen16(p + 8), 16))};
}
PS_INLINE V LoadF16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
PS_INLINE void StoreF16(V a, uint16_t* p) {
  auto* q = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(q, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128(q + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
PS_INLINE __m256 WidenEightBytes(const int8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
PS_INLINE V LoadSignedBytes(const int8_t* p) {
  return {WidenEightBytes(p), WidenEightBytes(p + 8)};
}
PS_INLINE __m256i LoadWords(const uint32_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
PS_INLINE V LoadBf16Lower(const uint32_t* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(LoadWords(p), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(LoadWords(p + 8), 16))};
}
// By shifts: a mask would take a register, and a full tile uses all sixteen.
PS_INLINE __m256 UpperOf(__m256i words) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_srli_epi32(words, 16), 16));
}
PS_INLINE V LoadBf16Upper(const uint32_t* p) {
  return {UpperOf(LoadWords(p)), UpperOf(LoadWords(p + 8))};
}
PS_INLINE __m256 JoinPlanes(const uint16_t* upper, const uint16_t* lower) {
  const __m256i lo = Widen16(lower);
  const __m256i exact_hi = _mm256_sub_epi32(Widen16(upper), _mm256_srli_epi32(lo, 15));
  return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(exact_hi, 16), lo));
}
PS_INLINE V LoadPlanes(const uint16_t* upper, const uint16_t* lower) {
  return {JoinPlanes(upper, lower), JoinPlanes(upper + 8, lower + 8)};
}
// Stores the lower 16 bits of sixteen words.
PS_INLINE void StoreWords16(__m256i a, __m256i b, uint16_t* p) {
  const __m256i mask = _mm256_set1_epi32(0xffff);
  const __m256i packed = _mm256_packus_epi32(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
PS_INLINE void StorePlanes(V a, uint16_t* upper, uint16_t* lower) {
  const __m256i x = _mm256_castps_si256(a.lo), y = _mm256_castps_si256(a.hi);
  const __m256i half = _mm256_set1_epi32(0x8000);
  StoreWords16(_mm256_srli_epi32(_mm256_add_epi32(x, half), 16),
               _mm256_srli_epi32(_mm256_add_epi32(y, half), 16), upper);
  StoreWords16(x, y, lower);
}
PS_INLINE __m256i RoundToBf16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a), upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(
      _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(rounded, quiet, nan);
}
PS_INLINE void StoreBf16(V a, uint16_t* p) {
  StoreWords16(RoundToBf16(a.lo), RoundToBf16(a.hi), p);
}
// Transposes eight rows of eight lanes.
PS_INLINE void TransposeEight(const __m256 (&in)[8], __m256 (&out)[8]) {
  __m256 t[8];
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    const __m256 a = _mm256_unpacklo_ps(in[i], in[i + 1]), b = _mm256_unpackhi_ps(in[i], in[i + 1]),
                 c = _mm256_unpacklo_ps(in[i + 2], in[i + 3]),
                 d = _mm256_unpackhi_ps(in[i + 2], in[i + 3]);
    t[i] = _mm256_shuffle_ps(a, c, 0x44);
    t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
    t[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
    t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    out[c] = _mm256_permute2f128_ps(t[c], t[4 + c], 0x20);
    out[4 + c] = _mm256_permute2f128_ps(t[c], t[4 + c], 0x31);
  }
}
PS_INLINE void Transpose(V (&rows)[kLanes]) {
  __m256 quarter[2][2][8], turned[8];
  for (int i = 0; i < kLanes; ++i) {
    quarter[i / 8][0][i % 8] = rows[i].lo;
    quarter[i / 8][1][i % 8] = rows[i].hi;
  }
  for (int half = 0; half < 2; ++half) {
    TransposeEight(quarter[0][half], turned);
    for (int i = 0; i < 8; ++i) rows[8 * half + i].lo = turned[i];
    TransposeEight(quarter[1][half], turned);
    for (int i = 0; i < 8; ++i) rows[8 * half + i].hi = turned[i];
  }
}
struct I {
  __m256i lo, hi;
};
PS_INLINE I IntZero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
PS_INLINE I IntLoad(const void* p) {
  const auto* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
PS_INLINE void IntStore(I a, void* p) {
  auto* q = static_cast<__m256i*>(p);
  _mm256_storeu_si256(q, a.lo);
  _mm256_storeu_si256(q + 1, a.hi);
}
PS_INLINE I IntAdd(I a, I b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
PS_INLINE I IntSub(I a, I b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
PS_INLINE V ToFloat(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
PS_INLINE I LowerNibbles(I a) {
  const __m256i mask = _mm256_set1_epi8(0xf);
  return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
}
PS_INLINE I UpperNibbles(I a) {
  return LowerNibbles({_mm256_srli_epi16(a.lo, 4), _mm256_srli_epi16(a.hi, 4)});
}
PS_INLINE I BroadcastInt(const int32_t* p) {
  return {_mm256_set1_epi32(*p), _mm256_set1_epi32(*p)};
}
PS_INLINE I BroadcastBytes(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return {_mm256_set1_epi32(word), _mm256_set1_epi32(word)};
}
template <int kRow>
PS_INLINE I BroadcastRow(const uint8_t* p, const int64_t (&odd)[6]) {
  constexpr int kScale = kRow == 0 ? 1 : kRow & -kRow;
  return BroadcastBytes(kRow == 0 ? p : p + kScale * odd[kRow / kScale / 2]);
}
// The products of half a vector. In assembly: with intrinsics g++ 12 keeps sums in memory, and adds
// the products of a group in an order of its own.
#if defined(PS_ISA_AVXVNNI)
constexpr int kByteBias = 128;
constexpr bool kPairedSums = false;
PS_INLINE __m256i DotBytesHalf(__m256i acc, __m256i x, __m256i w) {
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(x), "x"(w));
  return acc;
}
PS_INLINE __m256i DotNibblesHalf(__m256i acc, __m256i nibbles, __m256i x) {
  return DotBytesHalf(acc, nibbles, x);
}
PS_INLINE __m256i DotWordsHalf(__m256i acc, __m256i x, __m256i w) {
  asm("%{vex%} vpdpwssd %2, %1, %0" : "+x"(acc) : "x"(x), "x"(w));
  return acc;
}
#else
constexpr int kByteBias = 0;
constexpr bool kPairedSums = true;
// Two products of 255 and 127 do not fit the 16 bits of vpmaddubsw. So the unsigned factor is |w|,
// which the rows of a tile share, and the sign of w moves to x.
PS_INLINE __m256i DotBytesHalf(__m256i acc, __m256i x, __m256i w) {
  __m256i products;
  asm("vpsignb %[w], %[x], %[products]\n\t"
      "vpmaddubsw %[products], %[magnitudes], %[products]\n\t"
      "vpmaddwd %[ones], %[products], %[products]\n\t"
      "vpaddd %[products], %[acc], %[acc]"
      : [acc] "+x"(acc), [products] "=&x"(products)
      : [x] "x"(x), [w] "x"(w), [magnitudes] "x"(_mm256_abs_epi8(w)),
        [ones] "x"(_mm256_set1_epi16(1)));
  return acc;
}
PS_INLINE __m256i DotNibblesHalf(__m256i acc, __m256i nibbles, __m256i x) {
  __m256i products;
  asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
      : "+x"(acc), "=&x"(products)
      : "x"(nibbles), "x"(x));
  return acc;
}
PS_INLINE __m256i DotWordsHalf(__m256i acc, __m256i x, __m256i w) {
  __m256i products;
  asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(acc), "=&x"(products) : "x"(x), "x"(w));
  return acc;
}
#endif
PS_INLINE I DotBytes(I acc, I x, I w) {
  return {DotBytesHalf(acc.lo, x.lo, w.lo), DotBytesHalf(acc.hi, x.hi, w.hi)};
}
PS_INLINE I DotNibbles(I acc, I nibbles, I x) {
  return {DotNibblesHalf(acc.lo, nibbles.lo, x.lo), DotNibblesHalf(acc.hi, nibbles.hi, x.hi)};
}
PS_INLINE I MaxMagnitude(I acc, V x) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  return {_mm256_max_epi32(acc.lo, _mm256_and_si256(_mm256_castps_si256(x.lo), mask)),
          _mm256_max_epi32(acc.hi, _mm256_and_si256(_mm256_castps_si256(x.hi), mask))};
}
PS_INLINE float ReduceMagnitude(I a) {
  alignas(32) int32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), _mm256_max_epi32(a.lo, a.hi));
  int32_t largest = 0;
  for (const int32_t lane : lanes) largest = lane > largest ? lane : largest;
  return __builtin_bit_cast(float, largest);
}
PS_INLINE void StoreSignedBytes(V x, int8_t* p) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi));
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
PS_INLINE void StoreBytes(V x, uint8_t* p) {
  StoreSignedBytes(x, reinterpret_cast<int8_t*>(p));
  if constexpr (kByteBias != 0) {
    auto* bytes = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(bytes, _mm_xor_si128(_mm_loadu_si128(bytes), _mm_set1_epi8(-128)));
  }
}
PS_INLINE void StoreBytes(V a, V b, V c, V d, uint8_t* p) {
  StoreBytes(a, p);
  StoreBytes(b, p + kLanes);
  StoreBytes(c, p + 2 * kLanes);
  StoreBytes(d, p + 3 * kLanes);
}
PS_INLINE I WidenBytes(const int8_t* p) {
  const auto* q = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(q)), _mm256_cvtepi8_epi16(_mm_loadu_si128(q + 1))};
}
PS_INLINE I SumFactors(const int8_t* p) {
  const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i halves = _mm256_permute4x64_epi64(words, 0xd8);
  const __m256i second = kPairedSums ? halves : _mm256_setzero_si256();
  return {_mm256_unpacklo_epi16(halves, second), _mm256_unpackhi_epi16(halves, second)};
}
PS_INLINE I DotWords(I acc, I x, I w) {
  return {DotWordsHalf(acc.lo, x.lo, w.lo), DotWordsHalf(acc.hi, x.hi, w.hi)};
}
PS_INLINE __m256i BytePairs(__m256 a, __m256 b) {
  const __m256i low = _mm256_and_si256(_mm256_cvtps_epi32(a), _mm256_set1_epi32(0xff));
  return _mm256_or_si256(low, _mm256_slli_epi32(_mm256_cvtps_epi32(b), 8));
}
PS_INLINE void StoreBytePairs(V a, V b, int8_t* p) {
  StoreWords16(BytePairs(a.lo, b.lo), BytePairs(a.hi, b.hi), reinterpret_cast<uint16_t*>(p));
}
PS_INLINE void StoreSignedWords(V x, int16_t* p) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(words, 0xd8));
}
PS_INLINE void StoreSignedWords(V a, V b, int16_t* p) {
  StoreSignedWords(a, p);
  StoreSignedWords(b, p + kLanes);
}
PS_INLINE V Halves(__m256 lower, __m256 upper) { return {lower, upper}; }
PS_INLINE __m256 LowerHalf(V a) { return a.lo; }
PS_INLINE __m256 UpperHalf(V a) { return a.hi; }

#endif

// Sums and maxima over lanes by one fixed tree, which combines halves: 16 -> 8 -> 4 -> 2 -> 1.
PS_INLINE float ReduceAdd(V a) {
  const __m256 s8 = _mm256_add_ps(LowerHalf(a), UpperHalf(a));
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
PS_INLINE float ReduceMax(V a) {
  const __m256 s8 = _mm256_max_ps(LowerHalf(a), UpperHalf(a));
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

// exp(x): n = round(x / ln 2), r = x - n ln 2 in two parts (Cody-Waite), a minimax polynomial of
// degree 6 in r, and a scaling by a power of two, which makes subnormal and infinite results
// correct. Error about 1 ulp. NaN stays NaN.
PS_INLINE V Exp(V x) {
  x = Min(Set1(89.0f), Max(Set1(-105.0f), x));
  const V n = Round(Mul(x, Set1(1.44269504088896341f)));
  V r = Fnma(n, Set1(0.693359375f), x);
  r = Fnma(n, Set1(-2.12194440e-4f), r);
  // Coefficients: Cephes expf.
  V p = Set1(1.9875691500e-4f);
  p = Fma(p, r, Set1(1.3981999507e-3f));
  p = Fma(p, r, Set1(8.3334519073e-3f));
  p = Fma(p, r, Set1(4.1665795894e-2f));
  p = Fma(p, r, Set1(1.6666665459e-1f));
  p = Fma(p, r, Set1(5.0000001201e-1f));
  p = Add(Fma(p, Mul(r, r), r), Set1(1.0f));
  return TimesExp2(p, n);
}

// tanh(x) = 1 - 2 / (e^2x + 1); below 0.625, where that cancels, the odd polynomial of Cephes
// tanhf.
PS_INLINE V Tanh(V x) {
  const V z = Mul(x, x);
  V p = Set1(-5.70498872745e-3f);
  p = Fma(p, z, Set1(2.06390887954e-2f));
  p = Fma(p, z, Set1(-5.37397155531e-2f));
  p = Fma(p, z, Set1(1.33314422036e-1f));
  p = Fma(p, z, Set1(-3.33332819422e-1f));
  const V small = Fma(Mul(p, z), x, x);
  const V large = Sub(Set1(1.0f), Div(Set1(2.0f), Add(Exp(Add(x, x)), Set1(1.0f))));
  return Select(Less(Abs(x), Set1(0.625f)), small, large);
}

// 2^f on [-1/2, 1/2] as 1 + f (c1 + ... + c5 f^4): minimax of the relative error, 9.2e-8.
PS_INLINE V Exp2Fraction(V f) {
  V p = Set1(1.326472731e-3f);
  p = Fma(p, f, Set1(9.671512991e-3f));
  p = Fma(p, f, Set1(5.550733581e-2f));
  p = Fma(p, f, Set1(2.402224243e-1f));
  p = Fma(p, f, Set1(6.931470037e-1f));
  return Fma(p, f, Set1(1.0f));
}

// gelu in its tanh form: 0.5 x (1 + tanh(y)) = x / (1 + 2^t), t = -2 y log2(e), y = sqrt(2/pi) (x +
// 0.044715 x^3). Nothing cancels. t is clamped to the exponents of float32; outside them gelu is x
// or less than 1e-36.
PS_INLINE V Gelu(V x) {
  constexpr float kLinear = -2.302208198f;  // -2 sqrt(2/pi) log2(e)
  constexpr float kCubic = -0.1029432396f;  // 0.044715 kLinear
  V t = Mul(x, Fma(Mul(x, x), Set1(kCubic), Set1(kLinear)));
  t = Min(Set1(126.0f), Max(Set1(-126.0f), t));
  const V n = Round(t);
  return Div(x, Fma(Exp2Fraction(Sub(t, n)), Exp2Integer(n), Set1(1.0f)));
}

// x / (1 + e^-x), e^-x = 2^(f - n), n = round(c log2(e)), f = n - c log2(e) with log2(e) in two
// parts, c = x clamped to [-87, 87]. Nothing cancels. Beyond, silu is x, or x times less than
// 2e-38.
PS_INLINE V Silu(V x) {
  constexpr float kLog2E = 1.44269502f, kLog2ELow = 1.92596303e-8f;
  const V c = Min(Set1(87.0f), Max(Set1(-87.0f), x));
  const V n = Round(Mul(c, Set1(kLog2E)));
  const V f = Fnma(c, Set1(kLog2ELow), Fnma(c, Set1(kLog2E), n));
  return Div(x, Fma(Exp2Fraction(f), Exp2Integer(Sub(Zero(), n)), Set1(1.0f)));
}

#include "kernels/cpu/isa_end.inc"
