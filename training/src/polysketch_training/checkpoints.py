"""Checkpoints of a run: folders checkpoints/step-N that appear whole. All processes take part in save and load."""

import pathlib
import re
import shutil

import torch
from accelerate import Accelerator

from polysketch_tools.errors import ToolError
from polysketch_training.disk import flush_folder, writing

_NAME = re.compile(r"step-(\d+)$")


def newest(folder: pathlib.Path) -> pathlib.Path | None:
    """Returns the newest whole checkpoint."""
    found = sorted(folder.glob("step-*"), key=step_of) if folder.is_dir() else []
    return found[-1] if found else None


def step_of(checkpoint: pathlib.Path) -> int:
    match = _NAME.search(checkpoint.name)
    if match is None:
        raise ToolError(f"{checkpoint}: expected a checkpoint, step-N; found another name")
    return int(match[1])


class Checkpoints:
    def __init__(self, folder: pathlib.Path, accelerator: Accelerator, keep: int):
        self._folder, self._accelerator, self._keep = folder, accelerator, keep

    def save(self, step: int, of_process: dict) -> None:
        """Saves the model, the optimizer, the generators and what each process has of its own.

        A failure of any process raises ToolError in all; the checkpoints before stay.
        """
        partial, final = self._folder / f"partial-{step:08d}", self._folder / f"step-{step:08d}"
        error = None
        try:
            self._write(partial, of_process)
        except ToolError as failed:
            error = failed
        failures = torch.tensor([0.0 if error is None else 1.0], device=self._accelerator.device)
        if self._accelerator.reduce(failures).item() > 0:
            if self._accelerator.is_main_process:
                shutil.rmtree(partial, ignore_errors=True)
            last = newest(self._folder)
            raise ToolError(f"{error or 'another process cannot write its part'}; the last good checkpoint is {last or 'none'}")
        if self._accelerator.is_main_process:
            flush_folder(partial)
            partial.rename(final)
            for path in sorted(self._folder.glob("step-*"), key=step_of)[: -self._keep]:
                shutil.rmtree(path)
        self._accelerator.wait_for_everyone()

    def _write(self, partial: pathlib.Path, of_process: dict) -> None:
        with writing(partial):
            partial.mkdir(parents=True, exist_ok=True)
            self._accelerator.save_state(str(partial))
            torch.save(of_process, partial / f"process-{self._accelerator.process_index}.pt")

    def remove_partial(self) -> None:
        """Removes what a killed run left unfinished."""
        if self._accelerator.is_main_process:
            for path in self._folder.glob("partial-*"):
                shutil.rmtree(path)
        self._accelerator.wait_for_everyone()

    def load(self, checkpoint: pathlib.Path) -> dict:
        """Restores what save saved and returns of_process of this process."""
        path = checkpoint / f"process-{self._accelerator.process_index}.pt"
        processes = len(list(checkpoint.glob("process-*.pt")))
        if processes != self._accelerator.num_processes:
            raise ToolError(
                f"{checkpoint}: expected {processes} processes, as the run had; found {self._accelerator.num_processes}"
            )
        self._accelerator.load_state(str(checkpoint))
        return torch.load(path, map_location="cpu", weights_only=False)
