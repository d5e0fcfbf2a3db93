// The shapes for which the attention kernels by warpgroups (attention_group.cuh,
// attention_walk.cuh) exist, for the host code of serving and of training.
#pragma once

#include <cstdint>

namespace polysketch::cuda {

// Whether they exist for packed symmetric features of sketches. They also need shared memory:
// GroupMemory::Bytes.
constexpr bool HasGroupShape(int head_dim, bool sketched, int near_dim, int near_power) {
  return head_dim == 64 && sketched && (near_dim == 64 || near_dim == 32) &&
         (near_power == 2 || near_power == 4);
}

// Calls run.operator()<NEAR, POWER>() for a shape that HasGroupShape.
template <typename Run>
void WithGroupShape(int near_dim, int near_power, const Run& run) {
  if (near_dim == 64) {
    near_power == 2 ? run.template operator()<64, 2>() : run.template operator()<64, 4>();
  } else {
    near_power == 2 ? run.template operator()<32, 2>() : run.template operator()<32, 4>();
  }
}

// A state as the queries of warpgroups read it: for each 64 features a tile of 72 rows of 64, swizzled
// (warpgroup.cuh). The rows are the columns of S, z rounded to bf16, its remainder, and zeros.
constexpr int kStateRows = 72;
constexpr int kStateTile = kStateRows * 64;  // elements
constexpr int64_t GroupStateBytes(int features) { return int64_t{features / 64} * kStateTile * 2; }

// Counters of the walk over the states of a head (WalkProgress): one for each warp, which has 16
// features.
constexpr int WalkCounters(int features) { return features / 16; }

}  // namespace polysketch::cuda
