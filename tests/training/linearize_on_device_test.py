"""scripts/linearize-on-device: what `pack` made, in a copy of the parts of the tree that travel, becomes an adapter; and the number of steps
that the measured rate allows. Needs no GPU."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

import linearize_support
import support
from linearize_support import OPTIONS

SCRIPT = support.ROOT / "scripts/linearize-on-device"
TEXT = pathlib.Path(__file__).read_text() * 40
# A python3 whose runs train 18,300 tokens a second, and write what a run writes.
PYTHON = r"""#!/bin/bash
echo "$*" >>"$CALLS"
while [ $# -gt 0 ]; do case "$1" in --out) out=$2 ;; esac; shift; done
mkdir -p "$out/distillation" "$out/adapter"
touch "$out"/{report.md,report.json,times.csv,log.txt,distillation/losses.csv} "$out/adapter/model.json"
echo "step 1 of 6: 0.2000 nats to the teacher, 900 tokens/s, 00:40 left" >&2
echo "step 6 of 6: 0.1000 nats to the teacher, 18.3k tokens/s, 00:00 left" >&2
"""


class LinearizeOnDeviceTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        self.tree = self.dir / "tree"  # of the device
        (self.tree / "scripts").mkdir(parents=True)
        shutil.copy(SCRIPT, self.tree / "scripts")
        (self.dir / "text.txt").write_text(TEXT)

    def script(self, *arguments, path, status=0, **environment):
        environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "OUT": str(self.dir / "out"), **environment}
        ended = subprocess.run([self.tree / "scripts/linearize-on-device", *arguments], env=environment, check=False,
                               capture_output=True, text=True)
        self.assertEqual(ended.returncode, status, ended.stdout + ended.stderr)
        return ended.stdout + ended.stderr

    def pack(self, teacher):
        for command in (("git", "init", "--quiet"), ("git", "add", "scripts")):
            subprocess.run(command, cwd=self.tree, check=True)
        return self.script("pack", teacher, self.dir / "text.txt", path="/usr/bin")

    def python(self, code):
        """A folder with a python3 that runs the code."""
        path = self.dir / "bin/python3"
        path.parent.mkdir()
        path.write_text(code)
        path.chmod(0o755)
        return path.parent

    def test_an_adapter_comes_back(self):
        teacher = self.dir / "teacher.gguf"
        linearize_support.write_gguf(teacher, TEXT)
        told = self.pack(teacher)
        self.assertIn("'scripts/linearize-on-device run', carry .linearize/part.00", told)
        self.assertIn("git sparse-checkout set --no-cone /.gitignore /scripts/ /tools/ /training/", told)
        for name in ("tools", "training/src"):
            shutil.copytree(support.ROOT / name, self.tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        options = [option for option in OPTIONS if not option.startswith(("--steps", "--tokens-per-step", "--device"))]
        self.script("run", *options, "--layers=1", path=pathlib.Path(sys.executable).parent, LINEARIZE_DEVICE="cpu", LINEARIZE_STEPS="2",
                    LINEARIZE_TOKENS_PER_STEP="128")
        found = self.dir / "out/linearize"
        with tarfile.open(found / "adapter.tar.00") as archive:
            names = set(archive.getnames())
        self.assertLessEqual({"adapter/adapter_model.safetensors", "adapter/model.json"}, names)
        report = json.loads((found / "report.json").read_text())
        self.assertEqual(report["teacher"], "teacher.gguf")
        self.assertEqual((report["recipe"]["steps"], report["recipe"]["tokens"], report["full"]), (2, 128, [1]))
        self.assertEqual(len((found / "losses.csv").read_text().splitlines()), 3)

    def test_the_rate_says_how_many_steps(self):
        self.pack(self.dir / "text.txt")
        python = self.python(PYTHON)
        calls = self.dir / "calls"
        self.script("run", "--layers=none", path=python, CALLS=str(calls), LINEARIZE_LIMIT="1000", LINEARIZE_TOKENS_PER_STEP="8192")
        first, second = calls.read_text().splitlines()
        self.assertRegex(first, r"--no-control .* --steps 6 --far-steps 8 --layers=none --stop-after distillation .*--far-steps 2 ")
        self.assertIn("--layers=none", second)
        steps = int(second.partition("--steps ")[2].split()[0])
        most = 0.9 * 1000 * 18300 / 1.25 / 8192
        self.assertTrue(0.9 * most <= steps <= most, steps)
        self.script("run", "--far", "linear", path=python, CALLS=str(calls), LINEARIZE_LIMIT="1000", LINEARIZE_TOKENS_PER_STEP="8192")
        with_far = calls.read_text().splitlines()[3]
        self.assertIn("--far-steps 8 --far linear", with_far)
        self.assertLessEqual(int(with_far.partition("--steps ")[2].split()[0]), most - 8)

    def test_what_a_run_leaves_that_does_not_end(self):
        self.pack(self.dir / "text.txt")
        python = self.python(PYTHON + "echo loss >$out/distillation/losses.csv; exec sleep 60\n")
        said = self.script("run", path=python, status=1, CALLS=str(self.dir / "calls"), LINEARIZE_LIMIT="3", LINEARIZE_STEPS="1")
        self.assertIn("did not end within 3 s", said)
        self.assertEqual((self.dir / "out/linearize/losses.csv").read_text(), "loss\n")

    def test_bad_parts(self):
        self.assertIn(".linearize/part.*: expected what pack makes, found nothing", self.script("run", path="/usr/bin", status=1))
        (self.tree / ".linearize").mkdir()
        (self.tree / ".linearize/part.01").write_text("the second of two")
        self.assertIn("expected all parts, found a damaged archive", self.script("run", path="/usr/bin", status=1))

    def test_no_time(self):
        self.pack(self.dir / "text.txt")
        said = self.script("run", path="/usr/bin", status=1, LINEARIZE_LIMIT="0", LINEARIZE_STEPS="1")
        self.assertIn("no time was left of 0 s", said)


if __name__ == "__main__":
    unittest.main()
