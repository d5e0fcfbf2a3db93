"""Measures forward, and forward and backward, of one attention kind at one length: a child process of bench/figures, which has
limits. Prints a JSON object a line as soon as it is measured: the measure, the seconds of each run, the median."""

import argparse
import json
import statistics

import torch
from training_steps import TrainedRow

from polysketch_tools.model_config import ModelConfig

LONG_SECONDS = 20  # a first run that takes as long is the only one: what it allocates counts little


def measured(work, repeats: int) -> list[float]:
    """Returns the seconds of `repeats` runs after one that allocates."""
    first = work()
    return [first] if first >= LONG_SECONDS else [work() for _ in range(repeats)]


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
        seconds = measured(getattr(row, measure), args.repeats)
        print(json.dumps({"measure": measure, "seconds": statistics.median(seconds), "runs": seconds}), flush=True)


if __name__ == "__main__":
    main()
