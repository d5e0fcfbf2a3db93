"""Results of experiments: a JSON file for each run, with what made it."""

import datetime
import json
import pathlib
import platform
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]


def origin() -> dict:
    """The date, the commit and the processor of a result."""
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return {"date": datetime.date.today().isoformat(), "commit": git.stdout.strip(), "processor": _processor()}


def _processor() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def write(path: pathlib.Path, result: dict) -> None:
    """Writes the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(result) + "\n")
    partial.rename(path)


def read_all(folder: pathlib.Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def markdown(header: list[str], rows: list[list[str]]) -> list[str]:
    """Returns the lines of a table."""
    return [f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows]]
