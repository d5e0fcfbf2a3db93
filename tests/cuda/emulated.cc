#include <cuda_runtime.h>

#include "kernels/cuda/backend.h"
#include "tests/cuda/under_test.h"
#include "tests/simt/simt.h"

namespace polysketch::testing {

std::unique_ptr<Backend> NewBackendUnderTest(std::string* reason) {
  auto backend = cuda::CudaBackend::Open();
  if (backend.ok()) return std::move(backend).value();
  *reason = backend.status().ToString();
  return nullptr;
}

bool Emulated() { return true; }

int64_t Replays() { return simt::graph_launches; }

void SeedSchedule(uint64_t seed) { simt::Seed(seed); }

void SetSharedLimit(int64_t bytes) { simt::SetSharedLimit(static_cast<size_t>(bytes)); }

}  // namespace polysketch::testing
