"""Distillation: the student, with windows and LoRA, learns the teacher's distribution of the next token at every position."""

import dataclasses
import json
import math
import pathlib
import signal
import time
import warnings

import ml_dtypes
import numpy as np
import peft
import torch

from polysketch_tools.errors import ToolError
from polysketch_training.disk import write_text, writing
from polysketch_training.linearize.decoder import Decoder
from polysketch_training.linearize.measurements import Measurements
from polysketch_training.linearize.samples import Sample, mean, score
from polysketch_training.linearize.scores import divergence
from polysketch_training.linearize.tasks import training_sequence
from polysketch_training.linearize.texts import Texts
from polysketch_training.progress import Bar
from polysketch_training.run_log import RunLog

TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
_WARMUP = 8  # steps, at most a quarter of them
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

    @property
    def total(self) -> int:
        return self.steps * self.tokens

    def rate(self, step: int) -> float:
        """Of step 0, 1, ...: a linear warm-up, then a line to zero."""
        warmup = min(_WARMUP, max(1, self.steps // 4))
        return self.learning_rate * min((step + 1) / warmup, 1) * (1 - step / self.steps)


class Plan:
    """The sequences of all steps, drawn once and kept: ids.bin (int32) and the length of each step's sequences."""

    def __init__(self, folder: pathlib.Path, recipe: Recipe):
        self._ids, self._lengths, self._recipe = folder / "ids.bin", folder / "lengths.json", recipe

    def make(self, tokenizer, texts: Texts, prefix: list[int]) -> None:
        if self._lengths.exists():  # written last
            return
        rng, lengths, recipe = np.random.default_rng(recipe_seed(self._recipe)), [], self._recipe
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


def recipe_seed(recipe: Recipe) -> list[int]:
    return [recipe.seed, recipe.steps, recipe.tokens]


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
        with torch.no_grad(), writing(self._path), open(self._path, "ab") as file:
            for step in range(recipe.steps):
                for begin, ids in plan.sequences(step):
                    if begin + len(ids) > done:
                        file.truncate(begin * row)
                        states = decoder.hidden(ids).cpu().numpy().astype(ml_dtypes.bfloat16)
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


def save_adapter(adapted, folder: pathlib.Path) -> None:
    """Writes LoRA as PEFT reads it. PEFT writes names in the order of a set; here they are sorted: the same run, the same bytes."""
    with writing(folder):
        adapted.save_pretrained(folder)
    path = folder / "adapter_config.json"
    config = {name: sorted(value) if isinstance(value, list) else value for name, value in json.loads(path.read_text()).items()}
    write_text(path, json.dumps(config, indent=1, sort_keys=True) + "\n")


class Distillation:
    """decoder: with LoRA of `adapted` in its layers. folder: of the state, the losses and the measurements."""

    def __init__(self, decoder: Decoder, adapted, plan: Plan, teacher: TeacherStates, recipe: Recipe, folder: pathlib.Path):
        self._decoder, self._plan, self._teacher, self._recipe, self._folder = decoder, plan, teacher, recipe, folder
        self._weights = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
        self._optimizer = torch.optim.AdamW(self._weights.values(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
        self._state = folder / "state.pt"
        self.done = 0
        self.interrupted = False
        if self._state.exists():
            self._load()

    def _load(self) -> None:
        try:
            state = torch.load(self._state, map_location=self._decoder.device, weights_only=True)
            with torch.no_grad():
                for name, weight in self._weights.items():
                    weight.copy_(state["weights"][name])
            self._optimizer.load_state_dict(state["optimizer"])
            self.done = state["done"]
        except Exception as error:  # torch.load raises what the damage provokes
            raise ToolError(f"{self._state}: expected the state of a distillation, found damage: {error}") from error

    def _save(self) -> None:
        temporary = self._state.with_suffix(".tmp")
        weights = {name: weight.detach() for name, weight in self._weights.items()}
        with writing(self._state):
            torch.save({"weights": weights, "optimizer": self._optimizer.state_dict(), "done": self.done}, temporary)
            temporary.replace(self._state)

    def run(self, samples: list[Sample], *, save_every: int, measure_every: int, minutes: float | None) -> bool:
        """Trains from the state on disk. Returns whether the last step is done: not after `minutes`, SIGINT or SIGTERM, which leave a
        state. The samples are measured before the first step, every `measure_every` steps and after the last one."""
        recipe, found = self._recipe, Measurements(self._folder / "measurements.jsonl")
        handlers = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        log = RunLog(self._folder, done=self.done, steps=recipe.steps, tokens_of_step=recipe.tokens, divergence=True)
        end = time.monotonic() + 60 * minutes if minutes else math.inf
        try:
            self._measure(found, samples, measure_every)
            while self.done < recipe.steps:
                rate = recipe.rate(self.done)
                loss, norm = self._step(rate)
                self.done += 1
                log.add(self.done, loss, rate, norm)
                stop = self.interrupted or time.monotonic() >= end
                if stop or self.done % save_every == 0 or self.done == recipe.steps:
                    self._save()
                if stop and self.done < recipe.steps:
                    return False
                self._measure(found, samples, measure_every)
            return True
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            log.close()
            found.close()

    def _on_signal(self, number, frame) -> None:
        self.interrupted = True

    def _measure(self, found: Measurements, samples: list[Sample], every: int) -> None:
        if self.done % every and self.done < self._recipe.steps:
            return
        with torch.no_grad():
            for sample in samples:
                if not found.has(self.done, sample.name):
                    hidden = self._decoder.hidden(sample.ids)
                    found.add(self.done, sample.name, **score(self._decoder, hidden, sample))

    def _step(self, rate: float) -> tuple[float, float]:
        """Returns the divergence before the step, in nats a token, and the norm of its gradient."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        sequences = self._plan.sequences(self.done)
        loss = 0.0
        for begin, ids in sequences:
            student = self._decoder.hidden(ids, recompute=True)
            teacher = self._teacher.read(begin, len(ids)).to(self._decoder.device)
            value, gradient = divergence(self._decoder, student.detach(), teacher)
            student.backward(gradient / len(sequences))
            loss += value / len(sequences)
        norm = float(torch.nn.utils.clip_grad_norm_(self._weights.values(), 1.0))
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise ToolError(
                f"step {self.done + 1}: expected a finite divergence and gradient, found {loss} and {norm}; a lower --learning-rate"
                " avoids this; start it in another --out"
            )
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss, norm


def learning_curve(path: pathlib.Path, samples: list[Sample]) -> dict[int, dict]:
    """By the steps that were done: means over the samples."""
    found = Measurements(path)
    steps = sorted({of[0] for of in found.keys()})
    return {step: mean([found.get(step, sample.name) for sample in samples]) for step in steps}
