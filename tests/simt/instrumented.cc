// Where sources compiled with -fsanitize=thread report their loads and stores. No sanitizer is
// linked: the compiler's calls are all that is wanted of it. Accesses of vectors and of variables
// that do not leave a function are not reported.
#include "tests/simt/counts.h"

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define PS_COUNT(bytes)                                                              \
  void __tsan_read##bytes(void* a) { simt::CountAccess(a, bytes, false); }           \
  void __tsan_write##bytes(void* a) { simt::CountAccess(a, bytes, true); }           \
  void __tsan_unaligned_read##bytes(void* a) { simt::CountAccess(a, bytes, false); } \
  void __tsan_unaligned_write##bytes(void* a) { simt::CountAccess(a, bytes, true); }
PS_COUNT(1)
PS_COUNT(2)
PS_COUNT(4)
PS_COUNT(8)
PS_COUNT(16)
#undef PS_COUNT

void __tsan_read_range(void* a, unsigned long bytes) { simt::CountAccess(a, bytes, false); }
void __tsan_write_range(void* a, unsigned long bytes) { simt::CountAccess(a, bytes, true); }

}  // extern "C"
