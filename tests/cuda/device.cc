#include "kernels/new_backend.h"
#include "tests/cuda/under_test.h"

namespace polysketch::testing {

std::unique_ptr<Backend> NewBackendUnderTest(std::string* reason) {
  auto backend = NewCudaBackend();
  if (backend.ok()) return std::move(backend).value();
  *reason = backend.status().ToString();
  return nullptr;
}

bool Emulated() { return false; }

int64_t Replays() { return 0; }

void SeedSchedule(uint64_t) {}

void SetSharedLimit(int64_t) {}

}  // namespace polysketch::testing
