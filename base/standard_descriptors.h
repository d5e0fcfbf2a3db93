// Included by the source that defines main(). Opens /dev/null as standard input, output or error
// where the parent process has closed it. A socket or a file that the program opens would have that
// descriptor otherwise, and what is printed would go there.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace polysketch {

// Runs before the constructors of shared libraries, some of which open descriptors. Sanitizers do
// not see system calls by number: their runtimes have not started.
__attribute__((no_sanitize("address", "thread", "undefined"))) inline void
OpenStandardDescriptors() {
  for (long descriptor = 0; descriptor <= STDERR_FILENO; ++descriptor) {
    if (syscall(SYS_fcntl, descriptor, F_GETFD) < 0)
      syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);  // the lowest that is free
  }
}

__attribute__((section(".preinit_array"),
               used)) static void (*const kOpenStandardDescriptors)() = OpenStandardDescriptors;

}  // namespace polysketch
