"""A child process with a limit of time and one of memory, and which of them it reached."""

import dataclasses
import resource
import subprocess
import tempfile

MEASURED, TOO_SLOW, OUT_OF_MEMORY = "measured", "too slow", "out of memory"
# What programs say of memory that they did not get: C++, glibc, PyTorch on a CPU and on a GPU, Python.
_NO_MEMORY = ("bad_alloc", "cannot allocate memory", "can't allocate memory", "out of memory", "memoryerror")
_KILLED = -9  # by the kernel, when the machine has no memory left


@dataclasses.dataclass
class Outcome:
    """output: what the process printed until its end, whatever the status is."""

    status: str
    output: str


class ChildError(Exception):
    """A child process failed, and not by a limit."""


def run(command: list, *, seconds: float, memory: int) -> Outcome:
    """Runs `command` for at most `seconds`, with at most `memory` bytes of private memory (0: no limit)."""

    def limit() -> None:
        if memory:
            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))

    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen([str(part) for part in command], stdout=output, stderr=errors, preexec_fn=limit)
        try:
            code, status = process.wait(timeout=seconds), MEASURED
        except subprocess.TimeoutExpired:
            code, status = 0, TOO_SLOW
        finally:
            process.kill()
            process.wait()
        printed, said = (file.seek(0) or file.read() for file in (output, errors))
    if code != 0:
        if code != _KILLED and not any(words in said.lower() for words in _NO_MEMORY):
            raise ChildError(f"{' '.join(map(str, command))}: status {code}: {said.strip()[-2000:]}")
        status = OUT_OF_MEMORY
    return Outcome(status, printed)
