// The size in bytes of an x86-64 huge page, the unit of madvise(MADV_HUGEPAGE).
#pragma once

#include <cstddef>

namespace polysketch {

inline constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace polysketch
