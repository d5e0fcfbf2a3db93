// The tensor core instructions in software. Fragment layouts are those of the PTX manual: lane
// 4 g + t (g < 8, t < 4) of m16n8k16 holds of A rows g and g + 8, columns 2t, 2t + 1, 2t + 8,
// 2t + 9; of B (k x n) the same four rows of column g; of C rows g and g + 8, columns 2t, 2t + 1.
#include <cstring>

#include "base/half.h"
#include "tests/simt/counts.h"
#include "tests/simt/simt.h"

namespace simt {
namespace {

struct MmaInput {
  uint32_t a[4], b[2];
  float c[4];
};

using Widen = float (*)(uint16_t);

template <Widen kWiden>
void Multiply(const void* const* in, void* const* out) {
  CountProduct();
  float A[16][16], B[16][8];
  const auto input = [&](int lane) -> const MmaInput& {
    return *static_cast<const MmaInput*>(in[lane]);
  };
  for (int lane = 0; lane < kWarp; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      const auto part = [half](uint32_t pair) {
        return kWiden(static_cast<uint16_t>(pair >> (16 * half)));
      };
      for (int i = 0; i < 4; ++i) {
        A[g + 8 * (i % 2)][2 * t + 8 * (i / 2) + half] = part(input(lane).a[i]);
      }
      for (int i = 0; i < 2; ++i) B[2 * t + 8 * i + half][g] = part(input(lane).b[i]);
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const int row = g + 8 * (i / 2), column = 2 * t + i % 2;
      double sum = input(lane).c[i];
      for (int k = 0; k < 16; ++k) sum += static_cast<double>(A[row][k]) * B[k][column];
      static_cast<float*>(out[lane])[i] = static_cast<float>(sum);
    }
  }
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

template <Widen kWiden>
void Mma(const char* name, float c[4], const uint32_t a[4], const uint32_t b[2]) {
  MmaInput input;
  std::memcpy(input.a, a, sizeof(input.a));
  std::memcpy(input.b, b, sizeof(input.b));
  std::memcpy(input.c, c, sizeof(input.c));
  Collective(name, Multiply<kWiden>, &input, c);
}

}  // namespace

void MmaBf16(float c[4], const uint32_t a[4], const uint32_t b[2]) {
  Mma<polysketch::Bf16ToFloat>("mma.bf16", c, a, b);
}
void MmaF16(float c[4], const uint32_t a[4], const uint32_t b[2]) {
  Mma<polysketch::F16ToFloat>("mma.f16", c, a, b);
}
void LoadMatrix4(uint32_t out[4], const void* row, bool transpose) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
    __builtin_trap();  // ldmatrix asks for rows at multiples of 16 bytes
  }
  Collective(transpose ? "ldmatrix.trans" : "ldmatrix",
             transpose ? LoadRows<true> : LoadRows<false>, &row, out);
}

}  // namespace simt
