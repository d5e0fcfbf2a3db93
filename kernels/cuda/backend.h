#pragma once

#include <memory>

#include "base/status.h"
#include "kernels/backend.h"

namespace polysketch::cuda {

// FAILED_PRECONDITION where there is no device that it can use.
Result<std::unique_ptr<Backend>> NewBackend();

}  // namespace polysketch::cuda
