"""Trains models of every attention kind on synthetic tasks, serves them, and measures how often they answer right.

    experiments/run tasks RUNS [--quick] [--only PATTERN]

RUNS/NAME is the run folder of a model, RUNS/NAME.log its output, results/NAME.json what was measured. The same command continues
after a kill: runs with a result are skipped, others continue from their newest checkpoint. Processes have the scheduling class of
idle time (SCHED_IDLE), unless it is a quick run. Accuracy is that of greedy completions over gRPC."""

import pathlib
import sys
import tempfile

import numpy as np

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import configs
import suite
from accuracy import accuracy
from serving import Client, serving
from synthetic_tasks import make_task
from task_plan import expand
from task_training import EVALUATION, Learned, train
from training_log import losses

from polysketch_training.presets import Recipe


def measure(run: dict, folder: pathlib.Path, args) -> dict:
    task = make_task(run["task"], run["sizes"])
    config = configs.config_of(run["shape"], run["kind"], vocab_size=task.vocab_size, context_length=task.length)
    recipe = Recipe(length=task.length - 1, **run["recipe"])
    model = train(task, config, recipe, Learned(**run["learned"]), folder, threads=args.threads)
    rows = task.draw(np.random.default_rng([recipe.seed, EVALUATION]), run["evaluated_rows"])
    with tempfile.TemporaryDirectory() as name, serving(args.bin, model, pathlib.Path(name), args.threads) as address:
        found = accuracy(Client(args.bin, address, pathlib.Path(name)), task, rows)
    return {"accuracy": found, "steps": len(losses(folder))}


def summary(result: dict) -> str:
    return f"{100 * result['accuracy']['tokens']:.1f}% of the tokens right after {result['steps']} steps"


if __name__ == "__main__":
    suite.main(__file__, expand=expand, measure=measure, summary=summary)
