"""Libraries for LD_PRELOAD, built once, and what a test tells that of faults.c."""

import functools
import mmap
import pathlib
import struct
import subprocess

import serving

HERE = pathlib.Path(__file__).resolve().parent
CALLS = ("open", "write", "fsync", "rename", "readdir", "pread", "unlink")
FAULT = struct.Struct("6i")  # error, every, shorten, delay_ms, calls, faults
CLOCK = struct.Struct("q")


@functools.cache
def library(source="faults.c"):
    path = (serving.temporary_folder("faults") / pathlib.Path(source).name).with_suffix(".so")
    subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-result", "-shared", "-fPIC", "-o", path,
                    HERE / source, "-ldl"], check=True)
    return path


class Faults:
    """Faults of the process that is started with `environment`, in calls on files below a folder."""

    def __init__(self, folder, control):
        """`control`: path of a file outside the folder."""
        control.write_bytes(b"\0" * (CLOCK.size + len(CALLS) * FAULT.size))
        with open(control, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.environment = {"LD_PRELOAD": str(library()), "FAULTS_CONTROL": str(control), "FAULTS_FOLDER": str(folder)}

    @staticmethod
    def _at(call):
        return CLOCK.size + CALLS.index(call) * FAULT.size

    def set(self, call, error=0, every=1, shorten=0, delay_ms=0):
        FAULT.pack_into(self._map, self._at(call), error, every, shorten, delay_ms, 0, 0)

    def clear(self):
        self._map[CLOCK.size:] = b"\0" * (len(CALLS) * FAULT.size)

    def happened(self, call):
        """How often, since set."""
        return FAULT.unpack_from(self._map, self._at(call))[5]

    def move_clock(self, seconds):
        """The wall clock of the process, from the real one."""
        CLOCK.pack_into(self._map, 0, seconds)
