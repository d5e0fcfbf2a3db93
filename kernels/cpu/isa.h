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
// avx512 and the byte dot products that q8 weights want.
namespace avx512vnni {
std::unique_ptr<Backend> NewBackend(int threads);
}

}  // namespace polysketch::cpu
