"""Runs of polysketch-train on a tiny model, in this process and in others."""

import contextlib
import csv
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import psutil
from accelerate.state import AcceleratorState, GradientState

import support

from polysketch_training import train_command

CONFIG = {
    "attention": "learned_sketch_mixed",
    "vocab_size": 400,
    "emb_dim": 32,
    "num_heads": 2,
    "num_layers": 2,
    "context_length": 64,
    "grain_size": 16,
    "near_power": 4,
    "sketch_size": 8,
}
RECIPE = ["--batch=2", "--length=64", "--learning-rate=0.003", "--max-offset=4096", "--stream-chunks=4"]


def kill_all(process: subprocess.Popen) -> None:
    """Ends a process of `start` and the workers that torchrun put into sessions of their own: kill -9, all at once."""
    if process.poll() is None:
        started = psutil.Process(process.pid)
        for one in [started, *started.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait()
    process.stderr.close()


class TrainTest(unittest.TestCase):
    """A temporary folder, self.dir, with a text and a config."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        self.text = self.dir / "text.txt"
        self.text.write_text((support.ROOT / "docs/attention.md").read_text() * 2)
        self.config = self.write_config("config.json")

    def write_config(self, name: str, **changes) -> pathlib.Path:
        path = self.dir / name
        path.write_text(json.dumps(CONFIG | changes))
        return path

    def options(self, out: str, *more) -> list[str]:
        """Options of a run of two steps; later ones win."""
        first = [f"--text={self.text}", f"--config={self.config}", f"--out={self.dir / out}", "--cpu", "--threads=1", "--steps=2"]
        return [str(option) for option in (*first, *RECIPE, *more)]

    def train(self, out: str, *more) -> str:
        """Runs in this process; returns what it prints on stderr."""
        return self._run(self.options(out, *more))

    def train_on_tokens(self, out: str, tokens: pathlib.Path, *more) -> str:
        """The same on a file of token ids instead of text."""
        options = self.options(out, f"--tokens={tokens}", *more)
        return self._run([option for option in options if not option.startswith("--text=")])

    def _run(self, options: list[str]) -> str:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr):
            train_command.command(options)
        return stderr.getvalue()

    def start(self, out: str, *more, processes: int = 1) -> subprocess.Popen:
        """Starts a process of its own, or several under torchrun."""
        module = ["-m", "polysketch_training.train_command", *self.options(out, *more)]
        if processes > 1:
            module = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *module]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen([sys.executable, "-B", *module], stderr=subprocess.PIPE, text=True, env=environment)
        self.addCleanup(kill_all, process)
        return process

    def losses(self, out: str) -> list[tuple[str, str]]:
        """Loss and gradient norm of each step, as they are written: equal text is equal bits."""
        with open(self.dir / out / "losses.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([row["step"] for row in rows], [str(i + 1) for i in range(len(rows))])
        return [(row["loss"], row["gradient_norm"]) for row in rows]
