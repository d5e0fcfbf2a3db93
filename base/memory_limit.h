// Memory where the process may not have all that the machine has (ulimit -v, RLIMIT_DATA): new work
// is refused while what runs still finds memory.
#pragma once

#include <cstddef>

namespace polysketch {

// Whether the process may have less memory than the machine has: RLIMIT_AS or RLIMIT_DATA is set.
bool MemoryIsLimited();

// Called first in main. An allocation of C++ that finds no memory then ends the process with a
// message and exit status 1: it cannot start.
void EndWithoutMemory();

// Called when the process begins to serve. From now on an allocation that finds no memory takes
// memory that is set aside here, and MemoryFits returns false until it could be set aside again.
void SetMemoryAside();

// Whether `bytes` may be allocated for new work, beside what the work that runs may need. Cheap: a
// process without a limit asks the kernel nothing. Thread-safe.
bool MemoryFits(size_t bytes);

}  // namespace polysketch
