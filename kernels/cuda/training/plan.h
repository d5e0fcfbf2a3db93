// The plan of a call of the C interface (polysketch_attention.h): checked sizes, the workspace, and
// the groups of heads. It depends on the shape alone, and so do the bits of a result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/training/polysketch_attention.h"
#include "kernels/cuda/training/refusal.h"

namespace polysketch::cuda {

struct TrainingPlan {
  bool mixed = false, sketched = false;  // neither: polynomial
  bool linear = false;                   // whether features are the far rows themselves
  int near_dim = 0, far_dim = 0, near_power = 0, features = 0;
  int64_t block = 0, blocks = 0;
  int64_t heads = 0;       // batch * heads
  int64_t group = 0;       // heads of a group
  bool by_groups = false;  // whether the kernels of group.cuh support the shape
  bool states = false;     // whether far states are stored
  bool gated = false;      // with a decay gate
  int ranges = 1;          // ranges of blocks in the walk over later blocks
  int state_ranges = 1;  // in the walk over earlier blocks; 1 for a chunk, whose bits are those of
                         // the whole sequence
  // Offsets in the workspace, in bytes; a and e are those of the backward pass.
  int64_t snapshot_bytes = 0, snapshot_z = 0;
  int64_t state_floats = 0;  // of a head, in the interface
  int64_t partials = 0, a = 0, e = 0;
  int64_t counters = 0;  // of the walk (WalkProgress)
  // Offsets of float16 inputs rounded to bf16, or -1; g is that of the backward pass.
  int64_t near_q = -1, near_k = -1, far_q = -1, far_k = -1, v = -1, g = -1;
  // With a decay gate: sums of the log decays from the start of each block, and, of the backward pass,
  // the terms of their gradients; float32 [group][tokens].
  int64_t decay_sums = 0, decay_terms = 0;
  int64_t forward_bytes = 0, backward_bytes = 0;
};

Refusal PlanTraining(const polysketch_attention_shape& shape, TrainingPlan* plan);

// Checks that kernels can address a tensor of the shape: type, alignment, strides.
Refusal CheckTensor(const polysketch_attention_shape& shape, const char* name,
                    const polysketch_attention_tensor& tensor, int width, bool input);

// Checks the states of a call; either may be null.
Refusal CheckStates(const polysketch_attention_shape& shape, const float* initial_state,
                    const float* final_state);

}  // namespace polysketch::cuda
