// Opens the part of a file that is compiled for one instruction set. CMake compiles every op file
// once for each set, with PS_ISA defined as its name. The set is enabled by a target pragma, not by
// -m flags: inline functions of headers that were included before are compiled for the baseline, so
// the linker cannot select an AVX-512 copy of them for a machine without AVX-512. No include guard:
// each op file includes this once, after all other headers (kernels/cpu/backend.h among them).

#if defined(__clang__) && defined(PS_ISA_VNNI)
#pragma clang attribute push(                                                               \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"))), \
    apply_to = function)
#elif defined(__clang__) && defined(PS_ISA_AVX512)
#pragma clang attribute push(                                                    \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), \
    apply_to = function)
#elif defined(__clang__) && defined(PS_ISA_AVXVNNI)
#pragma clang attribute push(__attribute__((target("avxvnni,avx2,fma,f16c"))), apply_to = function)
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#elif defined(PS_ISA_VNNI)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#elif defined(PS_ISA_AVX512)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#elif defined(PS_ISA_AVXVNNI)
#pragma GCC push_options
#pragma GCC target("avxvnni,avx2,fma,f16c")
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

namespace polysketch::cpu::PS_ISA {
