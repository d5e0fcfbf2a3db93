"""Measurements on disk, a JSON object a line, in the order in which they are made. A run that was killed goes on after the last whole line."""

import json
import os
import pathlib

from polysketch_tools.errors import ToolError
from polysketch_training.disk import writing


class Measurements:
    def __init__(self, path: pathlib.Path):
        self._path, self._found = path, {}
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            data = path.read_bytes() if path.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            for line in whole.splitlines():
                self._keep(line)
            if len(whole) < len(data):
                with open(path, "r+b") as file:
                    file.truncate(len(whole))
            self._file = open(path, "ab")

    def _keep(self, line: bytes) -> None:
        try:
            fields = json.loads(line)
            self._found[tuple(fields["of"])] = fields["values"]
        except (ValueError, KeyError, TypeError) as error:
            raise ToolError(f"{self._path}: expected the measurements of a run, found damage: {error}") from error

    def keys(self) -> list[tuple]:
        return list(self._found)

    def has(self, *of) -> bool:
        return of in self._found

    def get(self, *of) -> dict:
        if of not in self._found:
            raise ToolError(f"{self._path}: expected a measurement of {', '.join(map(str, of))}, found none: start it in another --out")
        return self._found[of]

    def add(self, *of, **values) -> None:
        self._found[of] = values
        with writing(self._path):
            self._file.write(json.dumps({"of": list(of), "values": values}).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())  # what is done after it may not be on the disk before it

    def close(self) -> None:
        self._file.close()
