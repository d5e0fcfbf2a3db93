// The instruction sets that the cpu backend is compiled for.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace polysketch::cpu {

namespace avx2 {
std::unique_ptr<Backend> NewBackend(int threads);
}
namespace avx512 {
std::unique_ptr<Backend> NewBackend(int threads);
}

}  // namespace polysketch::cpu
