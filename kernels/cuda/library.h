// What the cuda backend's library exports, in C names.
#pragma once

#include "base/status.h"
#include "kernels/backend.h"

namespace polysketch {

// Moves on with every change of Backend, SequenceState, Matrix or Status: the library and the
// program pass them to each other.
inline constexpr int kCudaLibraryVersion = 1;

// int polysketch_cuda_version();
// Backend* polysketch_cuda_backend(Status*): null with the reason.
using CudaBackendFactory = Backend* (*)(Status*);

}  // namespace polysketch
