"""experiments/decay_gate: what is trained and continued, means by depth, the tables."""

import json
import lzma
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

import support

FOLDER = support.ROOT / "experiments/decay_gate"
sys.path.append(str(FOLDER))
import blocks  # noqa: E402: a script's module


class DecayGateExperimentTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def run_script(self, name: str, *arguments) -> str:
        command = [sys.executable, "-B", FOLDER / name, *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def test_train(self):
        plan = json.loads((FOLDER / "plan.json").read_text())
        plan["options"] |= {"--steps": 2, "--length": 128, "--batch": 1}
        plan["runs"] = plan["runs"][:2]
        (self.dir / "plan.json").write_text(json.dumps(plan))
        ids = np.random.default_rng(1).integers(3, 4096, 4000).astype(np.uint16)
        (self.dir / "train.bin.xz").write_bytes(lzma.compress(ids.tobytes()))
        runs = self.dir / "runs"
        arguments = (runs, "--plan", self.dir / "plan.json", "--tokens", self.dir / "train.bin.xz")
        self.run_script("train", *arguments)
        gates = [json.loads((runs / name / "model/config.json").read_text()).get("decay_gate") for name in ("gated-1", "ungated-1")]
        self.assertEqual([bool(gate) for gate in gates], [True, False])
        self.assertEqual((runs / "train.bin").read_bytes(), ids.tobytes())
        self.assertEqual(self.run_script("train", *arguments), "")  # both are there

    def test_means(self):
        text = {"deep": [4.0] * 8 + [3.0, 5.0] * 12, "fresh": [4.0] * 8 + [4.0] * 24}
        first, second = blocks.buckets([text, text])
        self.assertEqual((first["begin"], first["end"], second["end"]), (0, 4096, 16384))
        self.assertEqual(first["difference"], {"mean": 0, "standard_error": 0})
        self.assertEqual(second["difference"]["mean"], 0)
        self.assertAlmostEqual(second["deep"]["standard_error"], math.sqrt(48 / 47 / 48))

    def test_tables(self):
        for name, shift in (("gated-1", -0.25), ("ungated-1", 0.0), ("demo", 0.5)):
            text = {"deep": [4.0 + shift] * 32, "fresh": [4.0] * 32}
            result = {"model": name, "text_starts": [0], "blocks": [text], "buckets": blocks.buckets([text])}
            (self.dir / f"{name}.json").write_text(json.dumps(result))
        tables = self.run_script("table", *sorted(self.dir.glob("*.json")))
        self.assertIn("| gated-1 | 4,096 to 16,384 | 3.7500 +- 0.0000 | 4.0000 | -0.2500 +- 0.0000 |", tables)
        self.assertIn("| gated-1 - ungated-1 | 4,096 to 16,384 | -0.2500 +- 0.0000 |", tables)
        self.assertIn("| ungated-1 - demo | 0 to 4,096 | -0.5000 +- 0.0000 |", tables)


if __name__ == "__main__":
    unittest.main()
