"""What polysketch_training recorded of the steps of a run."""

import csv
import pathlib


def losses(folder: pathlib.Path) -> list[float]:
    """Returns the loss of each step of the run in `folder`, in nats."""
    with (folder / "losses.csv").open(newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def means(values: list[float], count: int) -> list[float]:
    """Returns the mean of each `count` values; the last one may be of fewer."""
    parts = (values[begin : begin + count] for begin in range(0, len(values), count))
    return [round(sum(part) / len(part), 4) for part in parts]
