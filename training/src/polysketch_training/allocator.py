"""How the C library's allocator treats the memory of large tensors."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h of glibc
_NEVER = -1


def keep_freed_memory() -> None:
    """Lets the process keep freed memory and use it again. glibc returns the memory of a large tensor to the kernel, which clears
    the pages of the next one: about a tenth of a training step on a CPU. Other C libraries are left as they are."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, _NEVER)
