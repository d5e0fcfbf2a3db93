"""Measures forward, and forward and backward, of one attention kind at one length: a child process of bench/figures, which has
limits. Prints a JSON object a line after each run: the measure, the seconds of the runs that count, their median. The last line of a
measure counts; earlier ones are for the case that a limit ends the process."""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator

import torch
from training_steps import TrainedRow

from polysketch_tools.model_config import ModelConfig

LONG_SECONDS = 20  # a first run that takes as long is the only one: what it allocates counts little


def measured(work: Callable[[], float], repeats: int) -> Iterator[list[float]]:
    """Yields after each run the seconds of the runs that count: the first one, which allocates, until there are others."""
    first = work()
    yield [first]
    seconds: list[float] = []
    while first < LONG_SECONDS and len(seconds) < repeats:
        seconds = [*seconds, work()]
        yield seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="the fields of ModelConfig as JSON")
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--measures", nargs="+", choices=("forward", "forward_backward"), required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    row = TrainedRow(ModelConfig(**json.loads(args.config)), args.length, args.device)
    for measure in args.measures:
        for seconds in measured(getattr(row, measure), args.repeats):
            print(json.dumps({"measure": measure, "seconds": statistics.median(seconds), "runs": seconds}), flush=True)


if __name__ == "__main__":
    main()
