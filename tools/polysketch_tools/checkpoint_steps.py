"""Finds a step below the root folder of Orbax's CheckpointManager or of flax.training.checkpoints."""

import dataclasses
import json
import pathlib
import re
import sys

from polysketch_tools.errors import ToolError
from polysketch_tools.file_kinds import describe, listed

# "100", "ckpt_000100", "checkpoint_100", and what an interrupted save leaves: "100.orbax-checkpoint-tmp".
_STEP_NAME = re.compile(
    r"(?:(?P<prefix>.+)_)?(?P<step>\d+)(?P<temporary>\.orbax-checkpoint-tmp.*)?"
)


@dataclasses.dataclass(order=True)
class _Step:
    number: int
    path: pathlib.Path
    prefix: str
    complete: bool


def find_checkpoint(path: pathlib.Path, step: int | None = None) -> pathlib.Path:
    """Returns `path`, or, if it holds numbered steps, the checkpoint of `step` (None: of the newest complete one)."""
    steps = [] if (path / "_METADATA").exists() or not path.is_dir() else _read_steps(path)
    if not steps:
        if step is not None:
            raise ToolError(
                f"{path}: --step {step}: expected a folder of numbered steps, found {_without_steps(path)}"
            )
        return path
    complete = [entry for entry in steps if entry.complete]
    if not complete:
        raise ToolError(
            f"{path}: expected a step with a file _METADATA, found incomplete steps only: {_names(steps)}"
        )
    if len(prefixes := {entry.prefix for entry in complete}) > 1:
        raise ToolError(
            f"{path}: expected steps of one name, found {listed([p + '_N' if p else 'N' for p in sorted(prefixes)])}"
        )
    chosen = _newest(steps) if step is None else _named(path, steps, step)
    print(f"checkpoint: {chosen.path}", file=sys.stderr)
    return chosen.path


def orbax_items(path: pathlib.Path) -> list[pathlib.Path]:
    """Returns the folders of parameter trees in the folder of a step, such as "default" or "state"."""
    return sorted(
        entry.parent
        for entry in path.glob("*/_METADATA")
        if ".orbax-checkpoint-tmp" not in entry.parent.name
    )


def _read_steps(path: pathlib.Path) -> list[_Step]:
    steps = []
    for entry in path.iterdir():
        if match := _STEP_NAME.fullmatch(entry.name):
            complete = match["temporary"] is None and _is_complete(entry)
            steps.append(_Step(int(match["step"]), entry, match["prefix"] or "", complete))
    return sorted(steps)


def _is_complete(path: pathlib.Path) -> bool:
    if not path.is_dir():
        return True  # flax.training.checkpoints renames a whole file
    # Orbax writes _METADATA after the arrays, and the time of the commit after everything.
    if not (path / "_METADATA").exists() and not orbax_items(path):
        return False
    if (path / "commit_success.txt").exists():
        return True
    try:
        metadata = json.loads((path / "_CHECKPOINT_METADATA").read_text())
    except FileNotFoundError:
        return True  # older versions of Orbax do not write it
    except ValueError:
        return False
    return isinstance(metadata, dict) and metadata.get("commit_timestamp_nsecs", 0) is not None


def _names(steps: list[_Step]) -> str:
    return listed([entry.path.name for entry in steps])


def _newest(steps: list[_Step]) -> _Step:
    newest = [entry for entry in steps if entry.complete][-1]
    if later := [entry for entry in steps if entry.number > newest.number]:
        print(f"skipped, incomplete: {_names(later)}", file=sys.stderr)
    return newest


def _named(path: pathlib.Path, steps: list[_Step], number: int) -> _Step:
    found = [entry for entry in steps if entry.number == number]
    for entry in found:
        if entry.complete:
            return entry
    if found:
        raise ToolError(
            f"{path}: --step {number}: expected a complete step, found the incomplete {_names(found)}"
        )
    known = [str(entry.number) for entry in reversed(steps) if entry.complete]
    raise ToolError(f"{path}: --step {number}: expected one of {listed(known)}; found none")


def _without_steps(path: pathlib.Path) -> str:
    if not path.exists():
        return "no such file or folder"
    return "one Orbax checkpoint" if (path / "_METADATA").exists() else describe(path)
