"""Child processes with a limit of time and one of memory, and which of them they reached."""

import dataclasses
import resource
import select
import subprocess
import tempfile
import time

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
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = _start(command, memory, stdout=output, stderr=errors)
        try:
            code, status = process.wait(timeout=seconds), MEASURED
        except subprocess.TimeoutExpired:
            code, status = 0, TOO_SLOW
        finally:
            process.kill()
            process.wait()
        printed, said = (file.seek(0) or file.read() for file in (output, errors))
    return Outcome(status if code == 0 else _status_of(command, code, said), printed)


class Worker:
    """A process that answers requests: a line of its standard input each, whose answer is lines of its standard output, an
    empty one last. A request that reaches a limit ends the process; the next one starts it again."""

    def __init__(self, command: list, *, memory: int):
        self._command, self._memory = command, memory
        self._process: subprocess.Popen | None = None

    def ask(self, line: str, *, seconds: float) -> Outcome:
        """Returns the lines of the answer, as far as they were printed within `seconds`, a start of the process included."""
        deadline = time.monotonic() + seconds
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it ended between two requests
        if self._process is None:
            self._errors = tempfile.TemporaryFile("w+")
            self._process = _start(self._command, self._memory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        answer = b""
        while not answer.endswith(b"\n\n") and answer != b"\n":
            if not select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                self.close()
                return Outcome(TOO_SLOW, answer.decode())
            printed = self._process.stdout.read1(1 << 16)
            if not printed:
                return Outcome(self._ended(), answer.decode())
            answer += printed
        return Outcome(MEASURED, answer.decode())

    def _ended(self) -> str:
        """Returns the limit that a process reached which ended by itself."""
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read()
        self.close()
        return _status_of(self._command, code, said)

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            file.close()
        self._process = None


def _start(command: list, memory: int, **streams) -> subprocess.Popen:
    def limit() -> None:
        if memory:
            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))

    return subprocess.Popen([str(part) for part in command], preexec_fn=limit, **streams)


def _status_of(command: list, code: int, said: str) -> str:
    """Returns the limit that a process reached which ended with the status `code` and wrote `said` on its standard error."""
    if code == _KILLED or any(words in said.lower() for words in _NO_MEMORY):
        return OUT_OF_MEMORY
    raise ChildError(f"{' '.join(map(str, command))}: status {code}: {said.strip()[-2000:]}")
