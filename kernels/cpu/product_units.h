// Instructions for products that an instruction set may have besides multiply-adds.
#pragma once

#include "kernels/cpu/amx_product.h"

namespace polysketch::cpu {

struct ProductUnits {
  // Products of many rows with q8 weights, all products with bf16 weights, and folds of bf16 values
  // use these tiles. No start measures that: tiles compute several times as many products of bf16 a
  // second as float32 multiply-adds do, whatever the processor.
  TileUnit tiles = TileUnit::kNone;
  // Without tiles: products with bf16 weights use dot products of bf16 pairs (AVX512-BF16).
  bool bf16_dots = false;

  // Whether products with bf16 weights round activations to bf16, row by row. If not, activations
  // stay float32.
  bool round_to_bf16() const { return bf16_dots || tiles != TileUnit::kNone; }
};

// Whether dot products of bf16 pairs compute clearly more products a second than float32
// multiply-adds on this machine. The first call measures, in registers, for some microseconds.
// (Measured: twice as many on Zen 5, half as many on another machine.)
bool Bf16DotsAreFaster();

}  // namespace polysketch::cpu
