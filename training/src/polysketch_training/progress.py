"""One line of progress on stderr: on a terminal it is rewritten, else it is printed every ten seconds and at the end."""

import io
import sys
import time

from tqdm import tqdm

_LOG_SECONDS = 10  # between lines where stderr is no terminal


class Bar:
    def __init__(self, total: int, done: int = 0, unit: str = " tokens"):
        self._total, self._done = total, done
        self._terminal = sys.stderr.isatty()
        # Does the arithmetic and, on a terminal, the line.
        self._bar = tqdm(
            total=total,
            initial=done,
            unit=unit,
            unit_scale=True,
            mininterval=0.5,
            bar_format="{desc}{rate_fmt}, {remaining} left",
            dynamic_ncols=True,
            file=sys.stderr if self._terminal else io.StringIO(),
        )
        self._printed = time.monotonic()

    def add(self, count: int, text: str) -> None:
        """Counts `count` more; `text` is what the line says before the rate."""
        self._done += count
        self._bar.set_description_str(text, refresh=False)
        self._bar.update(count)
        now = time.monotonic()
        if not self._terminal and (now - self._printed >= _LOG_SECONDS or self._done >= self._total):
            self._printed = now
            print(str(self._bar).strip(), file=sys.stderr, flush=True)

    def close(self) -> None:
        self._bar.close()
