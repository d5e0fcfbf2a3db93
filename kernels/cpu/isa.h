// The instruction sets that the cpu backend is compiled for.
#pragma once

#include <memory>

#include "kernels/backend.h"
#include "kernels/cpu/units.h"

namespace polysketch::cpu {

namespace avx2 {
std::unique_ptr<Backend> NewBackend(int threads, const ProductUnits& units);
}
namespace avx512 {
std::unique_ptr<Backend> NewBackend(int threads, const ProductUnits& units);
}
// avx512 and the byte dot products that quantised weights want; with tiles, those of q8 weights;
// with dot products of bf16 pairs, those of bf16 weights.
namespace avx512vnni {
std::unique_ptr<Backend> NewBackend(int threads, const ProductUnits& units);
}

}  // namespace polysketch::cpu
