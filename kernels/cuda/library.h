// The functions that the cuda backend's library exports, in C names. The library and the program
// pass C++ objects to each other, so both must be built from the same headers.
#pragma once

#include "base/status.h"
#include "kernels/backend.h"

namespace polysketch {

// const char* polysketch_cuda_interface(): POLYSKETCH_CUDA_INTERFACE of the library, a hash of this
// header and all headers of the tree that it includes (cmake/write_cuda_interface.cmake).
using CudaInterfaceName = const char* (*)();
// Backend* polysketch_cuda_backend(Status*): null with the reason in the status.
using CudaBackendFactory = Backend* (*)(Status*);

}  // namespace polysketch
