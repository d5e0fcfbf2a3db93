"""What a run records of each step: losses.csv, TensorBoard's files and one line of progress."""

import contextlib
import csv
import io
import math
import pathlib

from torch.utils.tensorboard import SummaryWriter

from polysketch_training.disk import write_text, writing
from polysketch_training.progress import Bar

FIELDS = ("step", "loss", "learning_rate", "gradient_norm", "tokens")


class RunLog:
    """Steps count from 1. A resumed run drops what was recorded after its checkpoint. One process writes."""

    def __init__(self, folder: pathlib.Path, *, done: int, steps: int, tokens_of_step: int, unit: str | None = None):
        self._path, self._board_path = folder / "losses.csv", folder / "tensorboard"
        self._tokens_of_step = tokens_of_step
        write_text(self._path, _csv_text([FIELDS, *self._rows_until(done)]))
        with writing(self._path):
            self._file = open(self._path, "a", newline="")
        self._rows = csv.writer(self._file)
        with writing(self._board_path):
            self._board = SummaryWriter(str(self._board_path), purge_step=done + 1)
        self._progress = Progress(done, steps, tokens_of_step, unit)

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
    """Steps, and the loss smoothed over some twenty of them. With a `unit` the loss is another than that of text: it has no perplexity."""

    def __init__(self, done: int, steps: int, tokens_of_step: int, unit: str | None = None):
        self._steps, self._tokens_of_step, self._unit = steps, tokens_of_step, unit
        self._loss = None
        self._bar = Bar(steps * tokens_of_step, done * tokens_of_step)

    def add(self, step: int, loss: float) -> None:
        self._loss = loss if self._loss is None else 0.95 * self._loss + 0.05 * loss
        if self._unit:
            value = f"{self._loss:.4f} {self._unit}"
        else:
            value = f"loss {self._loss:.4f}, perplexity {math.exp(min(self._loss, 50)):,.1f}"
        self._bar.add(self._tokens_of_step, f"step {step} of {self._steps}: {value}, ")

    def close(self) -> None:
        self._bar.close()
