"""scripts/lint proto: a change of the contract that breaks clients is found, an addition is not."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUF = ROOT / ".venv/bin/buf"
CHANGES = {
    "another number": ("repeated int32 ids = 1;", "repeated int32 ids = 2;", "ids"),
    "another type": ("repeated int32 ids = 1;", "repeated int64 ids = 1;", "changed type"),
    "another name": ("repeated int32 ids = 1;", "repeated int32 tokens = 1;", "changed name"),
    "a call removed": ("  rpc GetModel(GetModelRequest) returns (GetModelResponse);\n", "", "GetModel"),
}


class BreakingTest(unittest.TestCase):
    def check(self, old: str, new: str) -> subprocess.CompletedProcess:
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "proto"
            shutil.copytree(ROOT / "proto", copy)
            file = copy / "polysketch/v1/polysketch.proto"
            text = file.read_text()
            self.assertEqual(text.count(old), 1, old)
            file.write_text(text.replace(old, new))
            command = [BUF, "breaking", copy, "--against", ROOT / "proto/released.binpb"]
            return subprocess.run(command, capture_output=True, text=True)

    def test_breaking_changes(self):
        for name, (old, new, words) in CHANGES.items():
            with self.subTest(name):
                result = self.check(old, new)
                self.assertEqual(result.returncode, 100, result.stderr)
                self.assertIn(words, result.stdout)

    def test_additions(self):
        old = "repeated int32 ids = 1;"
        self.assertEqual(self.check(old, old + "\n  int32 more = 900;").returncode, 0)


if __name__ == "__main__":
    unittest.main()
