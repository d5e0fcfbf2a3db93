// Opens the part of a file that is compiled for one instruction set: CMake compiles every op file
// once for each, with PS_ISA set to its name. A target pragma, not -m flags: inline functions of
// the standard library that were included before stay at the baseline, so the linker cannot pick an
// AVX-512 copy of them for a machine without it. No include guard: each op file includes it once,
// behind all its other includes.

#if !defined(PS_ISA)
// Editors and clang-tidy see the files without CMake's definitions.
#define PS_ISA avx512
#define PS_ISA_AVX512 1
#endif

#if defined(__clang__) && defined(PS_ISA_VNNI)
#pragma clang attribute push(                                                               \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"))), \
    apply_to = function)
#elif defined(__clang__) && defined(PS_ISA_AVX512)
#pragma clang attribute push(                                                    \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), \
    apply_to = function)
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#elif defined(PS_ISA_VNNI)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#elif defined(PS_ISA_AVX512)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

namespace polysketch::cpu::PS_ISA {
