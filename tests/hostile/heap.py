"""The live heap of a server that is started with heap.c."""

import mmap
import struct

import serving
from faults import library

HEAP = struct.Struct("2Q")  # samples, bytes


class Heap:
    def __init__(self, file):
        """`file`: a path for the figures."""
        file.write_bytes(b"\0" * HEAP.size)
        with open(file, "r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), 0)
        self.environment = {"LD_PRELOAD": str(library("heap.c")), "HEAP_FILE": str(file)}

    def live_bytes(self):
        """Of a sample that began after the call."""
        before = HEAP.unpack_from(self._map)[0]
        serving.wait_until(lambda: HEAP.unpack_from(self._map)[0] >= before + 2, "a sample of the heap", 10)
        return HEAP.unpack_from(self._map)[1]
