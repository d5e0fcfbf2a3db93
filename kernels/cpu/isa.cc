// Chooses the instruction set at run time.
#include "kernels/cpu/isa.h"

#include <cpuid.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "kernels/cpu/amx.h"
#include "kernels/new_backend.h"

namespace polysketch {
namespace {

using cpu::HasAmx;
using cpu::ProductUnits;
using cpu::TileUnit;

struct Isa {
  std::string_view name;
  bool (*supported)();
  std::unique_ptr<Backend> (*create)(int threads, const ProductUnits& units);
  ProductUnits units = {};
  // Whether the set is faster on this machine than the sets before it. Null: always, if supported.
  bool (*faster)() = nullptr;
};

// Of __builtin_cpu_supports, clang 14 does not know "f16c" and "avxvnni".
bool HasAvx2() {
  unsigned a, b, c, d;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}
#ifdef PS_COMPILED_avxvnni  // CMakeLists.txt
bool HasAvxVnni() {
  unsigned a, b, c, d;
  constexpr unsigned kAvxVnni = 1u << 4;
  return HasAvx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & kAvxVnni) != 0;
}
#endif
#if defined(PS_COMPILED_avx512) || defined(PS_COMPILED_avx512vnni)
bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif
#ifdef PS_COMPILED_avx512vnni
bool HasAvx512Vnni() { return HasAvx512() && __builtin_cpu_supports("avx512vnni"); }
bool HasAvx512Bf16() { return HasAvx512Vnni() && __builtin_cpu_supports("avx512bf16"); }
bool HasAvx512Amx() { return HasAvx512Vnni() && HasAmx(); }
#endif

// Slowest first. avx512amx_emulated is for tests: AMX tiles in software.
constexpr Isa kIsas[] = {
#ifdef PS_COMPILED_avx2
    {"avx2", HasAvx2, cpu::avx2::NewBackend},
#endif
#ifdef PS_COMPILED_avxvnni
    {"avxvnni", HasAvxVnni, cpu::avxvnni::NewBackend},
#endif
#ifdef PS_COMPILED_avx512
    {"avx512", HasAvx512, cpu::avx512::NewBackend},
#endif
#ifdef PS_COMPILED_avx512vnni
    {"avx512amx_emulated", HasAvx512Vnni, cpu::avx512vnni::NewBackend, {TileUnit::kEmulated}},
    {"avx512vnni", HasAvx512Vnni, cpu::avx512vnni::NewBackend},
    {"avx512bf16",
     HasAvx512Bf16,
     cpu::avx512vnni::NewBackend,
     {.bf16_dots = true},
     cpu::Bf16DotsAreFaster},
    {"avx512amx", HasAvx512Amx, cpu::avx512vnni::NewBackend, {TileUnit::kAmx}},
#endif
};

std::string Joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

}  // namespace

std::vector<std::string> CompiledCpuIsas() {
  std::vector<std::string> names;
  for (const Isa& isa : kIsas) names.emplace_back(isa.name);
  return names;
}

std::vector<std::string> SupportedCpuIsas() {
  std::vector<std::string> names;
  for (const Isa& isa : kIsas) {
    if (isa.supported()) names.emplace_back(isa.name);
  }
  return names;
}

Result<std::unique_ptr<Backend>> NewCpuBackend(int threads, std::string_view name) {
  for (const Isa& isa : kIsas) {
    if (isa.name == name && isa.supported()) return isa.create(threads, isa.units);
  }
  return FailedPrecondition("cpu instruction set: expected one that this machine has (",
                            Joined(SupportedCpuIsas()), "), found \"", name, "\"; compiled are ",
                            Joined(CompiledCpuIsas()));
}

Result<std::unique_ptr<Backend>> NewCpuBackend(int threads) {
  if (const char* forced = std::getenv("POLYSKETCH_ISA"); forced != nullptr && *forced != '\0') {
    return NewCpuBackend(threads, forced);
  }
  // Not by std::views, which clang 14 does not compile.
  for (size_t i = std::size(kIsas); i-- > 0;) {
    const Isa& isa = kIsas[i];
    if (isa.supported() && (isa.faster == nullptr || isa.faster()))
      return isa.create(threads, isa.units);
  }
  return FailedPrecondition(
      "cpu backend: expected a processor with an instruction set that this build is compiled for (",
      Joined(CompiledCpuIsas()), "), found one without");
}

}  // namespace polysketch
