#include "kernels/cuda/library.h"

#include <utility>

#include "kernels/cuda/backend.h"
#include "polysketch_cuda_interface.h"

extern "C" __attribute__((visibility("default"))) const char* polysketch_cuda_interface() {
  return POLYSKETCH_CUDA_INTERFACE;
}

extern "C" __attribute__((visibility("default"))) polysketch::Backend* polysketch_cuda_backend(
    polysketch::Status* status) {
  auto backend = polysketch::cuda::CudaBackend::Open();
  *status = backend.status();
  return backend.ok() ? std::move(backend).value().release() : nullptr;
}
