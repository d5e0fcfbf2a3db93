"""Trains a model on rows of a task that are drawn anew for each step. Only answers have a loss."""

import collections
import pathlib

import numpy as np
import torch
from accelerate.utils import set_seed
from synthetic_tasks import Task

from polysketch_training.batches import Batch
from polysketch_training.export import export_model
from polysketch_training.model import PolysketchModel
from polysketch_training.presets import Recipe
from polysketch_training.run_folder import RunFolder, Settings
from polysketch_training.trainer import Trainer, make_accelerator

NO_TARGET = -100
TRAINING, EVALUATION = 0, 1  # streams of random numbers of a seed


class TaskBatches:
    """An endless sequence of batches, in the form that the trainer takes."""

    def __init__(self, task: Task, rows: int, seed: int):
        self._task, self._rows = task, rows
        self._generator = np.random.default_rng([seed, TRAINING])

    def next(self) -> Batch:
        tokens = torch.from_numpy(self._task.draw(self._generator, self._rows)).long()
        targets = torch.full_like(tokens, NO_TARGET)
        for begin, end in self._task.answers:
            targets[:, begin:end] = tokens[:, begin:end]
        starts = torch.ones(self._rows, dtype=torch.bool)
        return Batch(tokens[:, :-1], targets[:, 1:], starts, torch.zeros(self._rows, dtype=torch.int64))

    def state(self) -> dict:
        return self._generator.bit_generator.state

    def restore(self, state: dict) -> None:
        self._generator.bit_generator.state = state


class Learned:
    """Whether the mean loss of the last `steps` steps is below `loss`: rows are new in each step, so it is that of unseen rows."""

    def __init__(self, loss: float, steps: int):
        self._loss, self._last = loss, collections.deque(maxlen=steps)

    def __call__(self, loss: float) -> bool:
        self._last.append(loss)
        return len(self._last) == self._last.maxlen and sum(self._last) < self._loss * len(self._last)


def train(task: Task, config, recipe: Recipe, learned: Learned, out: pathlib.Path, *, threads: int) -> pathlib.Path:
    """Trains in the folder `out`, from its newest checkpoint on, unless its model is there. Returns the model folder."""
    folder = RunFolder(out)
    if folder.model.exists():
        return folder.model
    torch.set_num_threads(threads)
    out.mkdir(parents=True, exist_ok=True)
    folder.claim(Settings(config, recipe, "f32"))
    set_seed(recipe.seed)
    model = PolysketchModel(config, seed=recipe.seed)
    batches = TaskBatches(task, recipe.batch, recipe.seed)
    accelerator = make_accelerator(recipe, "f32", cpu=True)
    trainer = Trainer(model, batches, recipe, accelerator, out, save_every=max(1, recipe.steps // 10), keep=1)
    trainer.resume()
    if not trainer.train(is_enough=learned):
        raise SystemExit(f"{out}: interrupted; the same command continues")
    export_model(accelerator.unwrap_model(model), folder.model, tokenizer=None)
    return folder.model
