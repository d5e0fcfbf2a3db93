"""The loop of training, on one process or on several that torchrun or `accelerate launch` starts."""

import math
import pathlib
import signal
import time
from collections.abc import Callable

import torch
from accelerate import Accelerator

from polysketch_tools.errors import ToolError
from polysketch_training.allocator import keep_freed_memory
from polysketch_training.batches import Batches
from polysketch_training.checkpoints import Checkpoints, newest, step_of
from polysketch_training.learning_rate import learning_rate
from polysketch_training.model import PolysketchModel
from polysketch_training.presets import Recipe
from polysketch_training.run_log import RunLog


def make_accelerator(recipe: Recipe, precision: str, cpu: bool) -> Accelerator:
    """Returns what trains on a GPU, or with `cpu` on the CPU: then the process keeps freed memory."""
    if cpu:
        keep_freed_memory()
    return Accelerator(
        mixed_precision={"f32": "no", "bf16": "bf16"}[precision], gradient_accumulation_steps=recipe.accumulate, cpu=cpu
    )


class Trainer:
    """Trains a model from the newest checkpoint in `folder`/checkpoints, or from the model as it is."""

    def __init__(
        self,
        model: PolysketchModel,
        batches: Batches,
        recipe: Recipe,
        accelerator: Accelerator,
        folder: pathlib.Path,
        *,
        save_every: int,
        keep: int,
    ):
        adam = torch.optim.AdamW(
            model.parameters(),
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            weight_decay=recipe.weight_decay,
        )
        self._model, self._optimizer = accelerator.prepare(model, adam)
        self._batches, self._recipe, self._accelerator = batches, recipe, accelerator
        self._save_every, self._folder = save_every, folder
        self._checkpoints = Checkpoints(folder / "checkpoints", accelerator, keep)
        self._state = None  # of the rows of this process; streamed sequences only
        self._done = self._saved = 0
        self.interrupted = False  # by SIGINT or SIGTERM

    @property
    def done(self) -> int:
        """The number of steps that are done, from the start of the run."""
        return self._done

    def resume(self) -> None:
        self._checkpoints.remove_partial()
        checkpoint = newest(self._folder / "checkpoints")
        if checkpoint is None:
            return
        own = self._checkpoints.load(checkpoint)
        self._batches.restore(own["batches"])
        if own["state"] is not None:
            self._state = own["state"].map(lambda x: x.to(self._accelerator.device))
        self._done = self._saved = step_of(checkpoint)

    def train(self, *, minutes: float | None = None, is_enough: Callable[[float], bool] = lambda loss: False) -> bool:
        """Trains until the last step, `minutes` or SIGTERM or SIGINT; saves a checkpoint. is_enough(loss) follows each step; when it
        returns true, this step is the last one. Returns whether the last step is done."""
        recipe, log = self._recipe, None
        if self._accelerator.is_main_process:
            processes = self._accelerator.num_processes
            tokens_of_step = recipe.batch * recipe.length * recipe.accumulate * processes
            log = RunLog(self._folder, done=self._done, steps=recipe.steps, tokens_of_step=tokens_of_step)
        handlers = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return self._run(log, time.monotonic() + 60 * minutes if minutes else math.inf, is_enough)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            if log is not None:
                log.close()

    def _on_signal(self, number, frame) -> None:
        self.interrupted = True

    def _run(self, log: RunLog | None, end: float, is_enough: Callable[[float], bool]) -> bool:
        """Returns whether the last step is done."""
        self._model.train()
        stop, last = False, self._done == self._recipe.steps
        while not last and not stop:
            rate = learning_rate(self._recipe, self._done)
            loss, norm, stop = self._step(rate, self.interrupted or time.monotonic() >= end)
            self._done += 1
            if log is not None:
                self._record(log, loss, rate, norm)
            last = is_enough(loss) or self._done == self._recipe.steps
            if stop or last or self._done % self._save_every == 0:
                self._save()
        return last

    def _record(self, log: RunLog, loss: float, rate: float, norm: float) -> None:
        try:
            log.add(self._done, loss, rate, norm)
        except ToolError as error:
            last = newest(self._folder / "checkpoints")
            raise ToolError(f"{error}; the last good checkpoint is {last or 'none'}") from error

    def _save(self) -> None:
        for name, parameter in self._model.named_parameters():
            if not bool(parameter.isfinite().all()):
                raise ToolError(f"step {self._done}: expected finite weights, found NaN or infinity in {name}; {self._advice()}")
        self._checkpoints.save(self._done, {"batches": self._batches.state(), "state": self._state})
        self._saved = self._done

    def _step(self, rate: float, stop: bool) -> tuple[float, float, bool]:
        """Returns loss and gradient norm, means over all processes, and whether any process wants to stop."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        losses, norm = [], None
        for _ in range(self._recipe.accumulate):
            with self._accelerator.accumulate(self._model):
                loss = self._loss()
                self._accelerator.backward(loss)
                losses.append(loss.detach())
                if self._accelerator.sync_gradients:
                    norm = self._accelerator.clip_grad_norm_(self._model.parameters(), self._recipe.clip)
                    shared = torch.stack([torch.stack(losses).double().mean(), loss.new_tensor(float(stop)).double()])
                    mean, stopping = self._accelerator.reduce(shared, reduction="mean").tolist()
                    self._check_finite(mean, norm)
                self._optimizer.step()
                self._optimizer.zero_grad()
        return mean, float(norm), stopping > 0

    def _loss(self) -> torch.Tensor:
        device = self._accelerator.device
        batch = self._batches.next()
        tokens, targets, positions = (x.to(device) for x in (batch.tokens, batch.targets, batch.positions))
        if self._recipe.sequences == "packed":
            return self._model(tokens, positions=positions, targets=targets).loss
        state = self._state
        if state is not None and bool(batch.starts.any()):
            state = state.reset_rows(batch.starts.to(device), positions)
        out = self._model(
            tokens, state=state, positions=positions if state is None else None, targets=targets, want_state=True
        )
        self._state = out.state.detach()
        return out.loss

    def _check_finite(self, loss: float, norm: torch.Tensor) -> None:
        """Raises before a step that would make weights NaN or infinite."""
        norm = float(norm)
        if math.isfinite(loss) and math.isfinite(norm):
            return
        what = f"loss {loss}" if not math.isfinite(loss) else f"gradient norm {norm}"
        raise ToolError(f"step {self._done + 1}: expected a finite loss and gradient, found {what}; {self._advice()}")

    def _advice(self) -> str:
        kept = f"step {self._saved}" if self._saved else "none"
        return (
            f"the last good checkpoint is {kept}. A lower --learning-rate or a longer --warmup-steps avoids this;"
            " start it in another --out"
        )
