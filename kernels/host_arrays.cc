// Arrays of backends that compute on the host.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "kernels/backend.h"

namespace polysketch {

float* Backend::NewArray(size_t size) {
  constexpr size_t kAlignment = 64;
  PS_CHECK(size <= SIZE_MAX / 8) << size;
  const size_t bytes = (size * sizeof(float) / kAlignment + 1) * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, bytes);
  PS_CHECK(memory != nullptr) << "out of memory for " << bytes << " bytes";
  std::memset(memory, 0, bytes);
  return static_cast<float*>(memory);
}

void Backend::DeleteArray(float* array) { std::free(array); }

void Backend::CopyIn(const float* host, size_t size, float* array) {
  std::copy_n(host, size, array);
}

void Backend::CopyOut(const float* array, size_t size, float* host) {
  std::copy_n(array, size, host);
}

}  // namespace polysketch
