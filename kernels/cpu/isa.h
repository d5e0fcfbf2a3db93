// The instruction sets that the cpu backend is compiled for.
#pragma once

#include <memory>

#include "kernels/backend.h"
#include "kernels/cpu/product_units.h"

namespace polysketch::cpu {

namespace avx2 {
std::unique_ptr<Backend> NewBackend(int threads, const ProductUnits& units);
}
// avx2 and AVX-VNNI, the byte dot products of quantised weights in 256 bits.
namespace avxvnni {
std::unique_ptr<Backend> NewBackend(int threads, const ProductUnits& units);
}
namespace avx512 {
std::unique_ptr<Backend> NewBackend(int threads, const ProductUnits& units);
}
// avx512 and VNNI, the byte dot products of quantised weights. Units may add AMX tiles for q8
// and bf16 weights and for folds, or dot products of bf16 pairs for bf16 weights.
namespace avx512vnni {
std::unique_ptr<Backend> NewBackend(int threads, const ProductUnits& units);
}

}  // namespace polysketch::cpu
