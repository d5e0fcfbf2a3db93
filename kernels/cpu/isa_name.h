// The instruction set that a file is compiled for. CMake defines PS_ISA, its name, and the macros
// of what it has.
#pragma once

#if !defined(PS_ISA)
// For editors and clang-tidy, which read a file without CMake's definitions.
#define PS_ISA avx512
#define PS_ISA_AVX512 1
#endif
