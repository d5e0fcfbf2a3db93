"""Build hook of pyproject.toml: the version, and polysketch_tools (formats of model folders), whose sources are in tools/."""

import pathlib
import re

from setuptools import setup

HERE = pathlib.Path(__file__).resolve().parent
CLONE = HERE.parent

version = re.search(r"^project\(polysketch VERSION (\S+)", (CLONE / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
setup(
    version=version,
    packages=["polysketch_training", "polysketch_training.linearize", "polysketch_tools"],
    package_dir={"polysketch_training": "src/polysketch_training", "polysketch_tools": "../tools/polysketch_tools"},
    package_data={"polysketch_tools": ["calibration.txt"]},
)
