"""Distillation: the student, with windows and LoRA, learns the teacher's distribution of the next token at every position."""

import dataclasses
import json
import pathlib
import warnings

import ml_dtypes
import numpy as np
import peft
import torch

from polysketch_training.disk import write_text, writing
from polysketch_training.linearize.decoder import Decoder
from polysketch_training.linearize.measurements import Measurements
from polysketch_training.linearize.products import products
from polysketch_training.linearize.samples import Sample, mean, score
from polysketch_training.linearize.scores import divergence
from polysketch_training.linearize.tasks import training_sequence
from polysketch_training.linearize.texts import Texts
from polysketch_training.linearize.training import Group, Training
from polysketch_training.progress import Bar

TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
_FAR_RATE = 2  # of far parts, times that of LoRA
_STATE_BYTES = np.dtype(ml_dtypes.bfloat16).itemsize


@dataclasses.dataclass(frozen=True)
class Recipe:
    steps: int
    tokens: int  # of a step: sequences of one length
    lengths: tuple[int, ...]  # which a step draws from
    recall_share: float  # of the sequences: with a recall task in the text
    rank: int
    targets: tuple[str, ...]
    learning_rate: float
    seed: int
    precision: str  # of products.PRECISIONS

    @property
    def total(self) -> int:
        return self.steps * self.tokens


class Plan:
    """The sequences of all steps, drawn once and kept: ids.bin (int32) and the length of each step's sequences. Other `stream`s draw
    others."""

    def __init__(self, folder: pathlib.Path, recipe: Recipe, *stream: int):
        self._ids, self._lengths, self._recipe = folder / "ids.bin", folder / "lengths.json", recipe
        self._seed = [recipe.seed, recipe.steps, recipe.tokens, *stream]

    def make(self, tokenizer, texts: Texts, prefix: list[int]) -> None:
        if self._lengths.exists():  # written last
            return
        rng, lengths, recipe = np.random.default_rng(self._seed), [], self._recipe
        with writing(self._ids), open(self._ids, "wb") as file:
            for _ in range(recipe.steps):
                length = int(rng.choice(recipe.lengths))
                for _ in range(recipe.tokens // length):
                    training_sequence(rng, tokenizer, texts.train, length, recipe.recall_share, prefix).tofile(file)
                lengths.append(length)
        write_text(self._lengths, json.dumps(lengths) + "\n")

    def sequences(self, step: int) -> list[tuple[int, np.ndarray]]:
        """The place of each sequence of the step among all tokens, and its ids."""
        lengths = json.loads(self._lengths.read_text())
        ids = np.memmap(self._ids, np.int32, "r")
        begin, length = step * self._recipe.tokens, lengths[step]
        return [(at, np.array(ids[at : at + length])) for at in range(begin, begin + self._recipe.tokens, length)]


class TeacherStates:
    """The last hidden states of the teacher for all tokens of a plan, in bfloat16. A run that was killed goes on after the last whole
    sequence."""

    def __init__(self, path: pathlib.Path, width: int):
        self._path, self._width = path, width

    def make(self, decoder: Decoder, plan: Plan, recipe: Recipe) -> None:
        row = self._width * _STATE_BYTES
        done = self._path.stat().st_size // row if self._path.exists() else 0
        if done == recipe.total:
            return
        decoder.set_windows([])
        bar = Bar(recipe.total)
        with torch.no_grad(), products(recipe.precision, decoder.device), writing(self._path), open(self._path, "ab") as file:
            for step in range(recipe.steps):
                for begin, ids in plan.sequences(step):
                    if begin + len(ids) > done:
                        file.truncate(begin * row)
                        states = decoder.hidden(ids).float().cpu().numpy().astype(ml_dtypes.bfloat16)
                        states.tofile(file)
                        file.flush()
                    bar.add(len(ids), f"teacher's states, step {step + 1} of {recipe.steps}: ")
        bar.close()

    def read(self, begin: int, count: int) -> torch.Tensor:
        """[count, D], float32"""
        states = np.memmap(self._path, np.int16, "r", offset=begin * self._width * _STATE_BYTES, shape=(count, self._width))
        return torch.from_numpy(np.array(states)).view(torch.bfloat16).float()


def add_lora(decoder: Decoder, recipe: Recipe):
    """Returns the decoder's model with LoRA of the recipe, whose second matrices are zero: it computes the same."""
    torch.manual_seed(recipe.seed)
    config = peft.LoraConfig(
        r=recipe.rank, lora_alpha=2 * recipe.rank, target_modules=[f"{name}_proj" for name in recipe.targets], task_type="CAUSAL_LM"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # between the releases of PEFT and transformers
        return peft.get_peft_model(decoder.model, config)


class Distillation(Training):
    """decoder: with LoRA of `adapted` in its layers. It trains LoRA, and far parts where there are some. folder: of the state, the losses
    and the measurements of the samples, before the first step, every `measure_every` steps and after the last one."""

    unit = "nats to the teacher"
    rate_option = "--learning-rate"

    def __init__(
        self,
        decoder: Decoder,
        adapted,
        plan: Plan,
        teacher: TeacherStates,
        recipe: Recipe,
        folder: pathlib.Path,
        samples: list[Sample],
        measure_every: int,
    ):
        self._decoder, self._plan, self._teacher, self._recipe = decoder, plan, teacher, recipe
        self._samples, self._every, self._found = samples, measure_every, Measurements(folder / "measurements.jsonl")
        for part in decoder.far.values():
            part.requires_grad_()
        far = {name: p for name, p in adapted.named_parameters() if ".far." in name}
        lora = {name: p for name, p in adapted.named_parameters() if p.requires_grad and name not in far}
        groups = [Group(lora, recipe.learning_rate)] + ([Group(far, _FAR_RATE * recipe.learning_rate)] if far else [])
        super().__init__(groups, folder, decoder.device, recipe.steps, recipe.tokens, recipe.precision)

    def gradients(self, step: int) -> float:
        """Returns the divergence before the step, in nats a token."""
        sequences = self._plan.sequences(step)
        loss = 0.0
        for begin, ids in sequences:
            student = self._decoder.hidden(ids, recompute=True)
            teacher = self._teacher.read(begin, len(ids)).to(self._decoder.device)
            value, gradient = divergence(self._decoder, student.detach(), teacher)
            student.backward(gradient / len(sequences))
            loss += value / len(sequences)
        return loss

    def measure(self, done: int) -> None:
        if done % self._every and done < self._recipe.steps:
            return
        with torch.no_grad():
            for sample in self._samples:
                if not self._found.has(done, sample.name):
                    hidden = self._decoder.hidden(sample.ids)
                    self._found.add(done, sample.name, **score(self._decoder, hidden, sample))


def learning_curve(path: pathlib.Path, samples: list[Sample]) -> dict[int, dict]:
    """By the steps that were done: means over the samples."""
    found = Measurements(path)
    steps = sorted({of[0] for of in found.keys()})
    return {step: mean([found.get(step, sample.name) for sample in samples]) for step in steps}
