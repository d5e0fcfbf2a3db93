#include "kernels/cuda/library.h"

#include <utility>

#include "kernels/cuda/backend.h"

extern "C" __attribute__((visibility("default"))) int polysketch_cuda_version() {
  return polysketch::kCudaLibraryVersion;
}

extern "C" __attribute__((visibility("default"))) polysketch::Backend* polysketch_cuda_backend(
    polysketch::Status* status) {
  auto backend = polysketch::cuda::CudaBackend::Open();
  *status = backend.status();
  return backend.ok() ? std::move(backend).value().release() : nullptr;
}
