// Closes the region that isa_begin.h opens.
}  // namespace polysketch::cpu::PS_ISA

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
