"""The programs of PolySketch Server. Each function is a console script of the wheel: it replaces the process by the program."""

import os
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
MODEL = FOLDER / "models/novels"


def _run(program, arguments):
    os.execv(FOLDER / "bin" / program, [program, *arguments])


def server():
    """polysketch-server. Without arguments, and without variables that name a model or a configuration, it serves MODEL."""
    arguments = sys.argv[1:]
    if not arguments and not {"POLYSKETCH_MODEL", "POLYSKETCH_CONFIG"} & os.environ.keys():
        arguments = ["--model", str(MODEL)]
    _run("polysketch-server", arguments)


def client():
    _run("polysketch", sys.argv[1:])


def load_generator():
    _run("polysketch-loadgen", sys.argv[1:])
