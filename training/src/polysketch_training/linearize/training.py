"""Steps of an optimizer that a killed run continues: those of attention transfer and of the distillation."""

import abc
import dataclasses
import math
import pathlib
import signal
import time

import torch

from polysketch_tools.errors import ToolError
from polysketch_training.disk import writing
from polysketch_training.linearize.products import products
from polysketch_training.run_log import RunLog

_WARMUP = 8  # steps, at most a quarter of them


@dataclasses.dataclass
class Group:
    """Weights by name, with a rate and a limit of the gradient's norm of their own."""

    weights: dict[str, torch.nn.Parameter]
    rate: float


class Training(abc.ABC):
    """folder: of state.pt and losses.csv."""

    unit: str  # of the loss
    rate_option: str

    def __init__(
        self, groups: list[Group], folder: pathlib.Path, device: torch.device, steps: int, tokens_of_step: int, precision: str
    ):
        self._groups, self._folder, self._device, self._steps, self._tokens = groups, folder, device, steps, tokens_of_step
        self._precision = precision  # of the gradients
        self._weights = {name: weight for group in groups for name, weight in group.weights.items()}
        self._optimizer = torch.optim.AdamW(
            [{"params": list(group.weights.values()), "lr": group.rate} for group in groups], betas=(0.9, 0.95), weight_decay=0.0
        )
        self._state = folder / "state.pt"
        self.done = 0
        self.interrupted = False
        if self._state.exists():
            self._load()

    @abc.abstractmethod
    def gradients(self, step: int) -> float:
        """Adds the gradients of a step to those of the weights. Returns the loss before it."""

    def measure(self, done: int) -> None:
        """Is called before the first step and after each."""

    def _load(self) -> None:
        try:
            state = torch.load(self._state, map_location=self._device, weights_only=True)
            with torch.no_grad():
                for name, weight in self._weights.items():
                    weight.copy_(state["weights"][name])
            self._optimizer.load_state_dict(state["optimizer"])
            self.done = state["done"]
        except Exception as error:  # torch.load raises what the damage provokes
            raise ToolError(f"{self._state}: expected the state of a training, found damage: {error}") from error

    def _save(self) -> None:
        temporary = self._state.with_suffix(".tmp")
        weights = {name: weight.detach() for name, weight in self._weights.items()}
        with writing(self._state):
            torch.save({"weights": weights, "optimizer": self._optimizer.state_dict(), "done": self.done}, temporary)
            temporary.replace(self._state)

    def run(self, *, save_every: int, minutes: float | None) -> bool:
        """Trains from the state on disk. Returns whether the last step is done: not after `minutes`, SIGINT or SIGTERM, which leave a
        state."""
        handlers = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        log = RunLog(self._folder, done=self.done, steps=self._steps, tokens_of_step=self._tokens, unit=self.unit)
        end = time.monotonic() + 60 * minutes if minutes else math.inf
        try:
            self.measure(self.done)
            while self.done < self._steps:
                loss, rate, norm = self._step()
                self.done += 1
                log.add(self.done, loss, rate, norm)
                stop = self.interrupted or time.monotonic() >= end
                if stop or self.done % save_every == 0 or self.done == self._steps:
                    self._save()
                if stop and self.done < self._steps:
                    return False
                self.measure(self.done)
            return True
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            log.close()

    def _on_signal(self, number, frame) -> None:
        self.interrupted = True

    def _rate(self, group: Group, step: int) -> float:
        """Of step 0, 1, ...: a linear warm-up, then a line to zero."""
        warmup = min(_WARMUP, max(1, self._steps // 4))
        return group.rate * min((step + 1) / warmup, 1) * (1 - step / self._steps)

    def _step(self) -> tuple[float, float, float]:
        """Returns the loss before the step, and the rate and the norm of the gradient of the first group."""
        with products(self._precision, self._device):
            loss, rates, norms = self.gradients(self.done), [], []
        for group, options in zip(self._groups, self._optimizer.param_groups):
            options["lr"] = self._rate(group, self.done)
            rates.append(options["lr"])
            norms.append(float(torch.nn.utils.clip_grad_norm_(group.weights.values(), 1.0)))
        if not all(map(math.isfinite, (loss, *norms))):
            raise ToolError(
                f"step {self.done + 1}: expected a finite loss and gradient, found {loss} and {max(norms)}; a lower {self.rate_option}"
                " avoids this; start it in another --out"
            )
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss, rates[0], norms[0]
