// The size of a huge page of x86-64, what madvise(MADV_HUGEPAGE) works in.
#pragma once

#include <cstddef>

namespace polysketch {

inline constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace polysketch
