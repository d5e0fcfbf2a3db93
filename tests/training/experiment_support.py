"""Quick runs of the experiments, as a user starts them."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import support

BIN = pathlib.Path(os.environ.get("POLYSKETCH_BIN_DIR", support.ROOT / "build/cpu/bin"))
EXPERIMENTS = support.ROOT / "experiments"
IS_BUILT = (BIN / "polysketch-server").exists()
sys.path.append(str(EXPERIMENTS))


def plan(experiment: str, name: str) -> dict:
    return json.loads((EXPERIMENTS / experiment / f"{name}.json").read_text())


class ExperimentTest(unittest.TestCase):
    """A temporary folder of runs, self.dir."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def run_quick(self, experiment: str, *options) -> subprocess.CompletedProcess:
        command = [sys.executable, "-B", EXPERIMENTS / experiment / "run.py", self.dir, "--quick", "--bin", BIN, *options]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True)

    def expect_runs(self, experiment: str, planned: dict) -> dict[str, dict]:
        """Makes the quick runs, which a second command does not make again. Returns their results."""
        done = self.run_quick(experiment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + self._logs())
        found = self.results()
        self.assertEqual({name: result["run"] for name, result in found.items()}, planned)
        self.assertEqual(self.run_quick(experiment).stdout, f"{len(planned)} runs, {len(planned)} have results\n")
        return found

    def results(self) -> dict[str, dict]:
        return {path.stem: json.loads(path.read_text()) for path in (self.dir / "results").glob("*.json")}

    def _logs(self) -> str:
        return "".join(path.read_text() for path in self.dir.glob("*.log"))

    def table(self, script: str) -> list[str]:
        command = [EXPERIMENTS / script, self.dir / "results"]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
