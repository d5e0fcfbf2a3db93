"""Progress of long writes on stderr: on a terminal one line that is rewritten, else a line every few seconds."""

import sys
import time

_TERMINAL_SECONDS, _LOG_SECONDS = 0.1, 5.0


class Progress:
    """Counts bytes up to `total`; the last line is always printed, once."""

    def __init__(self, what: str, total: int):
        self._what = what
        self._total = total
        self._done = 0
        self._start = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._interval = _TERMINAL_SECONDS if self._terminal else _LOG_SECONDS
        self._printed = self._start

    def add(self, size: int) -> None:
        self._done += size
        now = time.monotonic()
        finished = size > 0 and self._done >= self._total
        if not finished and now - self._printed < self._interval:
            return
        self._printed = now
        line = f"{self._what}: {self._done / max(self._total, 1):4.0%} of {self._total / 1e6:,.1f} MB, {now - self._start:.1f} s"
        if self._terminal:
            print(f"\r{line}", end="\n" if finished else "", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)
