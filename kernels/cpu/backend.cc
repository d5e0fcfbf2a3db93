#include "kernels/cpu/backend.h"

#include "kernels/cpu/isa.h"

namespace polysketch::cpu::PS_ISA {

#define PS_STRING_INNER(x) #x
#define PS_STRING(x) PS_STRING_INNER(x)

std::string_view CpuBackend::name() const {
  if (context_.units().bf16_dots) return "cpu/avx512bf16";
  switch (context_.units().tiles) {
    case TileUnit::kAmx:
      return "cpu/avx512amx";
    case TileUnit::kEmulated:
      return "cpu/avx512amx_emulated";
    case TileUnit::kNone:
      break;
  }
  return "cpu/" PS_STRING(PS_ISA);
}

std::unique_ptr<Backend> NewBackend(int threads, const ProductUnits& units) {
  return std::make_unique<CpuBackend>(threads, units);
}

}  // namespace polysketch::cpu::PS_ISA
