// What a call of the C interfaces (polysketch_attention.h, polysketch_sketch.h) answers.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "kernels/cuda/training/polysketch_attention.h"

namespace polysketch::cuda {

// Why a call fails, or OK.
struct Refusal {
  int status = POLYSKETCH_ATTENTION_OK;
  std::string message;
  bool ok() const { return status == POLYSKETCH_ATTENTION_OK; }
};

// Keeps the message for polysketch_attention_error of this thread, and returns the status.
int Report(Refusal refusal);

// Why a launch failed, or OK.
Refusal Launched(cudaError_t error);

// `needed` bytes at a multiple of 256, or a refusal.
Refusal CheckWorkspace(const void* workspace, size_t bytes, int64_t needed);

}  // namespace polysketch::cuda
