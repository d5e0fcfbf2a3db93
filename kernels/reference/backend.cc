#include "kernels/reference/backend.h"

#include "kernels/new_backend.h"

namespace polysketch {

std::unique_ptr<Backend> NewReferenceBackend(bool float64_state) {
  return std::make_unique<reference::ReferenceBackend>(float64_state);
}

}  // namespace polysketch
