#include "kernels/cuda/training/refusal.h"

#include <cstdint>
#include <utility>

#include "base/status.h"

namespace polysketch::cuda {
namespace {

std::string& LastError() {
  thread_local std::string error;
  return error;
}

}  // namespace

int Report(Refusal refusal) {
  if (!refusal.ok()) LastError() = std::move(refusal.message);
  return refusal.status;
}

Refusal Launched(cudaError_t error) {
  if (error == cudaSuccess) return Refusal();
  return {POLYSKETCH_ATTENTION_DEVICE, StrCat("CUDA: ", cudaGetErrorString(error))};
}

Refusal CheckWorkspace(const void* workspace, size_t bytes, int64_t needed) {
  const bool aligned = reinterpret_cast<uintptr_t>(workspace) % 256 == 0;
  if ((workspace == nullptr && needed > 0) || !aligned || bytes < static_cast<size_t>(needed)) {
    return {POLYSKETCH_ATTENTION_WORKSPACE,
            StrCat("expected a workspace of ", needed, " bytes at a multiple of 256, found ", bytes,
                   " bytes", aligned ? "" : ", not aligned")};
  }
  return Refusal();
}

}  // namespace polysketch::cuda

extern "C" __attribute__((visibility("default"))) const char* polysketch_attention_error(void) {
  return polysketch::cuda::LastError().c_str();
}
