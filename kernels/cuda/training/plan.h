// What a call of the C interface (polysketch_attention.h) does: checked sizes, the workspace and
// how heads are grouped. Decided by the shape alone, so that a result depends on nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/cuda/training/polysketch_attention.h"

namespace polysketch::cuda {

// Why a call was refused.
struct Refusal {
  int status = POLYSKETCH_ATTENTION_OK;
  std::string message;
  bool ok() const { return status == POLYSKETCH_ATTENTION_OK; }
};

struct TrainingPlan {
  bool mixed = false, sketched = false;  // neither: polynomial
  int near_dim = 0, far_dim = 0, near_power = 0, features = 0;
  int64_t block = 0, blocks = 0;
  int64_t heads = 0;  // batch * heads
  int64_t group = 0;  // of them at a time
  int ranges = 1;     // of blocks, in the walk over states
  // The workspace: offsets in bytes. Cotangents are the backward's.
  int64_t snapshot_bytes = 0, snapshot_z = 0;
  int64_t partials = 0, a = 0, e = 0;
  // Inputs of float16 as bf16; -1: they are bf16. g is the backward's.
  int64_t near_q = -1, near_k = -1, far_q = -1, far_k = -1, v = -1, g = -1;
  int64_t forward_bytes = 0, backward_bytes = 0;
};

Refusal PlanTraining(const polysketch_attention_shape& shape, TrainingPlan* plan);

// Whether a tensor of the shape can be addressed: type, alignment, strides.
Refusal CheckTensor(const polysketch_attention_shape& shape, const char* name,
                    const polysketch_attention_tensor& tensor, int width, bool input);

}  // namespace polysketch::cuda
