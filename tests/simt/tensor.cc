// The tensor core instructions in software. Fragment layouts are those of the PTX manual: lane
// 4 g + t (g < 8, t < 4) of m16n8k16 holds of A rows g and g + 8, columns 2t, 2t + 1, 2t + 8,
// 2t + 9; of B (k x n) the same four rows of column g; of C rows g and g + 8, columns 2t, 2t + 1.
// A register of m16n8k32 has four bytes in place of two halves: columns 4t to 4t + 3, then 4t + 16
// to 4t + 19.
#include <cstring>

#include "base/half.h"
#include "tests/simt/counts.h"
#include "tests/simt/simt.h"

namespace simt {
namespace {

template <typename Sum>
struct MmaInput {
  uint32_t a[4], b[2];
  Sum c[4];
};

// A product of 16 x 8 x k elements, of which a register holds kParts, with sums of type Sum;
// widen(register, part) is an element. Sums of products of bytes are exact in double too.
template <typename Sum, int kParts, typename Widen>
void Multiply(const void* const* in, void* const* out, const Widen& widen) {
  constexpr int kDepth = 8 * kParts;
  double A[16][kDepth], B[kDepth][8];
  const auto input = [&](int lane) -> const MmaInput<Sum>& {
    return *static_cast<const MmaInput<Sum>*>(in[lane]);
  };
  for (int lane = 0; lane < kWarp; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int part = 0; part < kParts; ++part) {
      for (int i = 0; i < 4; ++i) {
        A[g + 8 * (i % 2)][kParts * t + kDepth / 2 * (i / 2) + part] =
            widen(input(lane).a[i], part);
      }
      for (int i = 0; i < 2; ++i) {
        B[kParts * t + kDepth / 2 * i + part][g] = widen(input(lane).b[i], part);
      }
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const int row = g + 8 * (i / 2), column = 2 * t + i % 2;
      double sum = input(lane).c[i];
      for (int k = 0; k < kDepth; ++k) sum += A[row][k] * B[k][column];
      static_cast<Sum*>(out[lane])[i] = static_cast<Sum>(sum);
    }
  }
}

using WidenHalf = float (*)(uint16_t);

template <WidenHalf kWiden>
void MultiplyHalves(const void* const* in, void* const* out) {
  CountProducts(1);
  Multiply<float, 2>(in, out, [](uint32_t pair, int part) {
    return kWiden(static_cast<uint16_t>(pair >> (16 * part)));
  });
}

void MultiplyBytes(const void* const* in, void* const* out) {
  CountProducts(2);
  Multiply<int32_t, 4>(
      in, out, [](uint32_t word, int part) { return static_cast<int8_t>(word >> (8 * part)); });
}

template <bool kTranspose>
void LoadRows(const void* const* in, void* const* out) {
  for (int lane = 0; lane < kWarp; ++lane) {
    auto* registers = static_cast<uint32_t*>(out[lane]);
    for (int matrix = 0; matrix < 4; ++matrix) {
      uint32_t pair = 0;
      for (int half = 0; half < 2; ++half) {
        int row = lane / 4, column = 2 * (lane % 4) + half;
        if (kTranspose) std::swap(row, column);
        const void* address = *static_cast<const void* const*>(in[8 * matrix + row]);
        uint16_t value;
        std::memcpy(&value, static_cast<const uint16_t*>(address) + column, 2);
        pair |= static_cast<uint32_t>(value) << (16 * half);
      }
      registers[matrix] = pair;
    }
  }
}

template <typename Sum>
void Mma(const char* name, Combine combine, Sum c[4], const uint32_t a[4], const uint32_t b[2]) {
  MmaInput<Sum> input;
  std::memcpy(input.a, a, sizeof(input.a));
  std::memcpy(input.b, b, sizeof(input.b));
  std::memcpy(input.c, c, sizeof(input.c));
  Collective(name, combine, &input, c);
}

}  // namespace

void MmaBf16(float c[4], const uint32_t a[4], const uint32_t b[2]) {
  Mma("mma.bf16", MultiplyHalves<polysketch::Bf16ToFloat>, c, a, b);
}
void MmaF16(float c[4], const uint32_t a[4], const uint32_t b[2]) {
  Mma("mma.f16", MultiplyHalves<polysketch::F16ToFloat>, c, a, b);
}
void MmaBytes(int32_t c[4], const uint32_t a[4], const uint32_t b[2]) {
  Mma("mma.s8", MultiplyBytes, c, a, b);
}
void LoadMatrix4(uint32_t out[4], const void* row, bool transpose) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
    __builtin_trap();  // ldmatrix asks for rows at multiples of 16 bytes
  }
  Collective(transpose ? "ldmatrix.trans" : "ldmatrix",
             transpose ? LoadRows<true> : LoadRows<false>, &row, out);
}

}  // namespace simt
