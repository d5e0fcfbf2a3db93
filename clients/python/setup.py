"""Build hooks of pyproject.toml: the protobuf code and the version, whose sources lie outside this folder.

A source distribution holds copies of both sources. The generated code is never committed.
"""

import pathlib
import re
import shutil

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
CLONE = HERE.parents[1]
API = "polysketch/v1/polysketch.proto"
WIRE = "polysketch/_wire.proto"


def version():
    """The version of the server: project(... VERSION ...) of the clone, or the metadata of a source distribution."""
    if (HERE / "PKG-INFO").exists():
        return re.search(r"^Version: (\S+)$", (HERE / "PKG-INFO").read_text(), re.MULTILINE)[1]
    return re.search(r"^project\(polysketch VERSION (\S+)", (CLONE / "CMakeLists.txt").read_text(), re.MULTILINE)[1]


def api_folder():
    """The folder from which API is imported."""
    copied = HERE / "proto"
    return copied if (copied / API).exists() else CLONE / "proto"


def generate(target):
    import grpc_tools
    from grpc_tools import protoc

    include = [api_folder(), HERE / "proto", pathlib.Path(grpc_tools.__file__).parent / "_proto"]
    arguments = ["protoc", *(f"-I{folder}" for folder in dict.fromkeys(include))]
    outputs = [f"--python_out={target}", f"--pyi_out={target}"]
    for call in ([*outputs, f"--grpc_python_out={target}", API], [*outputs, WIRE]):
        if protoc.main([*arguments, *call]) != 0:
            raise RuntimeError(f"protoc failed on {call[-1]}")


class BuildPy(build_py):
    def run(self):
        super().run()
        generate(HERE / "src" if self.editable_mode else self.build_lib)


class Sdist(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        copy = pathlib.Path(base_dir) / "proto" / API
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(api_folder() / API, copy)
        shutil.copytree(HERE / "proto", pathlib.Path(base_dir) / "proto", dirs_exist_ok=True)


setup(version=version(), cmdclass={"build_py": BuildPy, "sdist": Sdist})
