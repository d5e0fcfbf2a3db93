"""scripts/get-model runs in .venv-models: what it runs imports packages of tools/models-requirements.txt alone."""

import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Refuses every module that is neither of the standard library, nor of the tools, nor of the packages of argv.
PROGRAM = """
import importlib, sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in sys.argv[2].split(","):
            raise ModuleNotFoundError(f"{name} is in no line of tools/models-requirements.txt")

sys.meta_path.insert(0, Refusing())
importlib.import_module(sys.argv[1])
"""


class GetModelTest(unittest.TestCase):
    def test_what_it_imports_is_in_its_environment(self):
        script = (ROOT / "scripts/get-model").read_text()
        modules = re.findall(r"-m (polysketch_tools\.\w+)", script)
        self.assertGreaterEqual(len(modules), 2)
        requirements = (ROOT / "tools/models-requirements.txt").read_text()
        packages = re.findall(r"^([\w-]+)==", requirements, re.MULTILINE)
        for module in modules:
            with self.subTest(module):
                made = subprocess.run(
                    [sys.executable, "-B", "-c", PROGRAM, module, ",".join(["polysketch_tools", *packages])],
                    cwd=ROOT / "tools", capture_output=True, text=True, check=False,
                )  # fmt: skip
                self.assertEqual(made.returncode, 0, made.stderr)


if __name__ == "__main__":
    unittest.main()
