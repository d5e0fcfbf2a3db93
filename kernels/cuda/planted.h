// Faults that tests plant in the kernels, to see that they are found (tests/cuda/CMakeLists.txt).
// PS_PLANTED(NAME): false, but in the emulation's build of the faults the value of
// POLYSKETCH_FAULT=NAME in the environment.
#pragma once

#if defined(POLYSKETCH_PLANTED)
namespace simt {
bool Planted(const char* fault);  // tests/simt/planted.cc
}  // namespace simt
#define PS_PLANTED(fault)                                \
  ([] {                                                  \
    static const bool planted = ::simt::Planted(#fault); \
    return planted;                                      \
  }())
#else
#define PS_PLANTED(fault) false
#endif
