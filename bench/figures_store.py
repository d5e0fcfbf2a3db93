"""figures.json of bench/figures: the points that are measured, of one commit and one machine with one set of settings."""

import datetime
import hashlib
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]


def commit() -> str:
    """Returns the commit of the tree, and a checksum of what was changed after it."""

    def git(*arguments) -> bytes:
        return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True).stdout

    try:
        name, changes = git("rev-parse", "--short=12", "HEAD").decode().strip(), git("diff", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    if not changes:
        return name
    return f"{name} and changes {hashlib.sha256(changes).hexdigest()[:12]}"


def key_of(point: dict) -> tuple[str, str, str, int]:
    """What names a point, whatever was measured of it."""
    return point["shape"], point["attention"], point["measure"], point["context"]


class Store:
    """The file. Points of another commit, machine or settings stay in a file of another name."""

    def __init__(self, path: pathlib.Path, about: dict, keep):
        """about: commit, machine and settings. keep(point): whether a point that the file has counts."""
        self._path, self.about, self.points = path, about, []
        if path.exists():
            found = json.loads(path.read_text())
            if {name: found.get(name) for name in about} == about:
                self.points = [point for point in found["points"] if keep(point)]
            else:
                path.rename(self._unused_name())

    def find(self, named: dict) -> dict | None:
        """Returns the point of the same shape, kind, measure and context."""
        return next((point for point in self.points if key_of(point) == key_of(named)), None)

    def add(self, point: dict) -> None:
        self.points.append(point | {"date": _now()})
        self.write()

    def write(self) -> None:
        text = json.dumps(self.about | {"date": _now(), "points": self.points}, indent=1) + "\n"
        partial = self._path.with_suffix(".partial")
        partial.write_text(text)
        partial.rename(self._path)

    def _unused_name(self) -> pathlib.Path:
        names = (self._path.with_name(f"{self._path.stem}-{number}.json") for number in range(1, 1 << 20))
        return next(name for name in names if not name.exists())


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
