"""What a run records of each step: losses.csv, TensorBoard's files and one line of progress."""

import contextlib
import csv
import io
import math
import pathlib
import sys
import time

from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from polysketch_training.disk import write_text, writing

FIELDS = ("step", "loss", "learning_rate", "gradient_norm", "tokens")
_LOG_SECONDS = 10  # between lines of progress where stderr is no terminal


class RunLog:
    """Steps count from 1. A resumed run drops what was recorded after its checkpoint. One process writes."""

    def __init__(self, folder: pathlib.Path, *, done: int, steps: int, tokens_of_step: int):
        self._path, self._board_path = folder / "losses.csv", folder / "tensorboard"
        self._tokens_of_step = tokens_of_step
        write_text(self._path, _csv_text([FIELDS, *self._rows_until(done)]))
        with writing(self._path):
            self._file = open(self._path, "a", newline="")
        self._rows = csv.writer(self._file)
        with writing(self._board_path):
            self._board = SummaryWriter(str(self._board_path), purge_step=done + 1)
        self._progress = Progress(done, steps, tokens_of_step)

    def _rows_until(self, done: int) -> list[list[str]]:
        if not self._path.exists():
            return []
        with open(self._path, newline="") as file:
            rows = list(csv.reader(file))[1:]
        # A line that a killed run left unfinished comes after its checkpoint, too.
        return [row for row in rows if row and row[0].isdigit() and int(row[0]) <= done]

    def add(self, step: int, loss: float, rate: float, norm: float) -> None:
        with writing(self._path):
            self._rows.writerow([step, repr(loss), repr(rate), repr(norm), step * self._tokens_of_step])
            self._file.flush()
        with writing(self._board_path):
            self._board.add_scalar("loss", loss, step)
            self._board.add_scalar("learning_rate", rate, step)
            self._board.add_scalar("gradient_norm", norm, step)
        self._progress.add(step, loss)

    def close(self) -> None:
        """Closes the files. A write that fails here has failed in add before, which raised it."""
        self._progress.close()
        for file in (self._board, self._file):
            with contextlib.suppress(OSError):
                file.close()


def _csv_text(rows) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


class Progress:
    """One line: on a terminal it is rewritten, else it is printed every ten seconds and after the last step."""

    def __init__(self, done: int, steps: int, tokens_of_step: int):
        self._steps, self._tokens_of_step = steps, tokens_of_step
        self._loss = None
        self._terminal = sys.stderr.isatty()
        # Does the arithmetic and, on a terminal, the line.
        self._bar = tqdm(
            total=steps * tokens_of_step,
            initial=done * tokens_of_step,
            unit=" tokens",
            unit_scale=True,
            mininterval=0.5,
            bar_format="{desc}{rate_fmt}, {remaining} left",
            dynamic_ncols=True,
            file=sys.stderr if self._terminal else io.StringIO(),
        )
        self._printed = time.monotonic()

    def add(self, step: int, loss: float) -> None:
        self._loss = loss if self._loss is None else 0.95 * self._loss + 0.05 * loss
        text = f"step {step} of {self._steps}: loss {self._loss:.4f}, perplexity {math.exp(min(self._loss, 50)):,.1f}, "
        self._bar.set_description_str(text, refresh=False)
        self._bar.update(self._tokens_of_step)
        now = time.monotonic()
        if not self._terminal and (now - self._printed >= _LOG_SECONDS or step == self._steps):
            self._printed = now
            print(str(self._bar).strip(), file=sys.stderr, flush=True)

    def close(self) -> None:
        self._bar.close()
