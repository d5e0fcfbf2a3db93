// What makes products beside the multiply-adds of an instruction set.
#pragma once

#include "kernels/cpu/tiles.h"

namespace polysketch::cpu {

struct ProductUnits {
  // The products of q8 weights with many rows.
  TileUnit tiles = TileUnit::kNone;
  // Products of bf16 weights by dot products of pairs of bf16 (AVX512-BF16), for which activations
  // are rounded to bf16 row by row; without, activations stay float32.
  bool bf16_dots = false;
};

// Whether a dot product of bf16 pairs makes clearly more products a second than a float32
// multiply-add on this machine, timed in registers for some microseconds, once. (Twice as many on
// Zen 5, half as many on another machine.)
bool Bf16DotsAreFaster();

}  // namespace polysketch::cpu
