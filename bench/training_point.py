"""Measures forward, and forward and backward, of training: a child process of bench/figures, which has limits. Each line of
standard input is a JSON object: `config` (the fields of ModelConfig), `length`, and `measures` (forward, forward_backward).
Answers by a JSON object a line after each run: the measure, the seconds of the runs that count, their median, and what computed
attention. The last line of a measure counts; earlier ones are for the case that a limit ends the process. An empty line ends an
answer."""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator

import torch
from training_steps import TrainedRow

from polysketch_tools.model_config import ModelConfig
from polysketch_training.attention import LIBRARY_KINDS
from polysketch_training.cuda_library import AttentionError

LONG_SECONDS = 20  # a first run that takes as long is the only one: what it allocates counts little


def measured(work: Callable[[], float], repeats: int) -> Iterator[list[float]]:
    """Yields after each run the seconds of the runs that count: the first one, which allocates, until there are others."""
    first = work()
    yield [first]
    seconds: list[float] = []
    while first < LONG_SECONDS and len(seconds) < repeats:
        seconds = [*seconds, work()]
        yield seconds


def print_measured(row: TrainedRow, measure: str, backend: str, repeats: int) -> None:
    row.use_attention(backend)
    for seconds in measured(getattr(row, measure), repeats):
        line = {"measure": measure, "seconds": statistics.median(seconds), "runs": seconds, "backend": backend}
        print(json.dumps(line), flush=True)


def answer(request: dict, args: argparse.Namespace) -> None:
    config = ModelConfig(**request["config"])
    row = TrainedRow(config, request["length"], args.device)
    backend = args.attention if config.attention in LIBRARY_KINDS else "torch"
    for measure in request["measures"]:
        try:
            print_measured(row, measure, backend, args.repeats)
        except AttentionError:  # a shape that the library lacks
            backend = "torch"
            print_measured(row, measure, backend, args.repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--attention", choices=("torch", "library"), default="torch")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for line in sys.stdin:
        answer(json.loads(line), args)
        if args.device == "cuda":
            torch.cuda.empty_cache()  # this process lives on beside programs that need the device's memory
        print(flush=True)


if __name__ == "__main__":
    main()
