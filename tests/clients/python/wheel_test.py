"""Builds the wheel of clients/python from a copy of the clone, checks it, and installs it where the other tests of this
folder import it: in the folder that POLYSKETCH_PYTHON_DIR names."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
SITE = pathlib.Path(os.environ["POLYSKETCH_PYTHON_DIR"])
BUILD_OUTPUTS = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "*_pb2*")
BACKEND = "import sys, setuptools.build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"


def run(*command, **options):
    options.setdefault("env", {name: value for name, value in os.environ.items() if name != "PYTHONPATH"})
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          **options)
    assert done.returncode == 0, f"{command}:\n{done.stdout}"
    return done.stdout


def build(kind, project, output):
    """The file that the backend builds: a wheel or an sdist, as pip does without a network."""
    return output / run(sys.executable, "-c", BACKEND, kind, output, cwd=project).splitlines()[-1]


def cmake_version():
    return re.search(r"^project\(polysketch VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = SITE.with_name(SITE.name + "-build")
        for folder in (cls.work, SITE):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        shutil.copy(ROOT / "CMakeLists.txt", cls.work)
        shutil.copytree(ROOT / "proto", cls.work / "proto")
        cls.project = cls.work / "clients/python"
        shutil.copytree(ROOT / "clients/python", cls.project, ignore=BUILD_OUTPUTS)
        cls.wheel = build("wheel", cls.project, cls.work)
        run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", SITE, cls.wheel)

    def test_contents(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            names = {name for name in wheel.namelist() if not name.endswith("/")}
            metadata = wheel.read(next(name for name in names if name.endswith("METADATA"))).decode()
        for name in ("py.typed", "client.py", "aio.py", "_wire_pb2.py", "_wire_pb2.pyi", "v1/__init__.py",
                     "v1/polysketch_pb2.py", "v1/polysketch_pb2.pyi", "v1/polysketch_pb2_grpc.py"):
            self.assertIn(f"polysketch/{name}", names)
        self.assertTrue(all(name.startswith("polysketch") for name in names), names)
        self.assertIn(f"\nVersion: {cmake_version()}\n", metadata)
        self.assertEqual(re.findall(r"^Requires-Dist: ([a-z]+)", metadata, re.MULTILINE), ["grpcio", "protobuf"])

    def test_the_generator_is_the_pinned_one(self):
        """pyproject.toml and requirements.txt name one version of grpcio-tools, and the oldest grpcio is that version."""
        project = (ROOT / "clients/python/pyproject.toml").read_text()
        pinned = re.search(r"grpcio-tools==([\d.]+)", project)[1]
        self.assertIn(f"grpcio-tools=={pinned}\n", pathlib.Path(__file__).with_name("requirements.txt").read_text())
        self.assertIn(f"grpcio>={pinned},", project)
        generated = (SITE / "polysketch/v1/polysketch_pb2.py").read_text()
        self.assertIn("protobuf>=" + re.search(r"Protobuf Python Version: ([\d.]+)", generated)[1] + ",", project)

    def test_a_source_distribution_builds_the_same_wheel(self):
        archive = build("sdist", self.project, self.work)
        shutil.unpack_archive(archive, self.work / "sdist")
        (unpacked,) = (self.work / "sdist").iterdir()
        output = self.work / "again"
        output.mkdir()
        with zipfile.ZipFile(build("wheel", unpacked, output)) as again, zipfile.ZipFile(self.wheel) as wheel:
            contents = [{name: one.read(name) for name in one.namelist() if name.startswith("polysketch/")}
                        for one in (again, wheel)]
        self.assertEqual(*contents)

    def test_a_fresh_environment(self):
        """The wheel in an environment of its own, which sees grpcio and protobuf of .venv."""
        fresh = self.work / "fresh"
        run(sys.executable, "-m", "venv", "--without-pip", fresh)
        run(sys.executable, "-m", "pip", "--python", fresh / "bin/python", "install", "--quiet", "--no-deps", self.wheel)
        (site,) = fresh.glob("lib/python3*/site-packages")
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        said = run(fresh / "bin/python", "-c", "import polysketch; print(polysketch.__file__, polysketch.__version__)")
        self.assertEqual(said.split(), [str(site / "polysketch/__init__.py"), cmake_version()])

    def test_types(self):
        """mypy --strict finds nothing in the package and in the examples."""
        run(sys.executable, "-m", "mypy", "--config-file", self.project / "pyproject.toml", "--cache-dir",
            self.work / "mypy", "-p", "polysketch", cwd=SITE)
        for example in sorted((ROOT / "clients/python/examples").glob("*.py")):
            run(sys.executable, "-m", "mypy", "--config-file", self.project / "pyproject.toml", "--cache-dir",
                self.work / "mypy", example, cwd=self.work, env=os.environ | {"MYPYPATH": str(SITE)})


if __name__ == "__main__":
    unittest.main()
