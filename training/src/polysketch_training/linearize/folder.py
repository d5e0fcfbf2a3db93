"""The folder of a run (--out): its stages, what each was run with, its log and its times."""

import contextlib
import csv
import datetime
import json
import pathlib
import resource
import sys
import time
from collections.abc import Iterator

from polysketch_tools.errors import ToolError
from polysketch_training.disk import write_text, writing
from polysketch_training.linearize.decoder import json_text


class StudentFolder:
    """Of a model that is distilled."""

    def __init__(self, path: pathlib.Path):
        self.distillation = path / "distillation"
        self.adapter = path / "adapter"
        self.model = path / "model"

    @property
    def written(self) -> bool:
        return (self.model / "config.json").exists()


class RunFolder:
    def __init__(self, path: pathlib.Path):
        self.path = path
        self.teacher = path / "teacher"  # of a GGUF file
        self.sensitivity = path / "sensitivity"
        self.transfer = path / "transfer"
        self.student = StudentFolder(path)
        self.control = StudentFolder(path / "control")
        self.evaluation = path / "evaluation"
        self.report = path / "report.json"
        self.report_text = path / "report.md"
        self.picture = path / "sensitivity.svg"

    def claim(self, stage: pathlib.Path, settings: dict) -> None:
        """Writes the settings of a new stage, or checks that they are those that it began with."""
        with writing(stage):
            stage.mkdir(parents=True, exist_ok=True)
        file, settings = stage / "settings.json", json.loads(json.dumps(settings))
        try:
            found = json.loads(file.read_text())
            if not isinstance(found, dict):
                raise ValueError(f"found {type(found).__name__}")
        except FileNotFoundError:
            write_text(file, json_text(settings))
            return
        except ValueError as error:
            raise ToolError(f"{file}: expected the settings of a run, found damage: {error}") from error
        for name in sorted(settings.keys() | found.keys()):
            if found.get(name) != settings.get(name):
                raise ToolError(
                    f"{stage} was begun with {name} {found.get(name)!r:.200}, found {settings.get(name)!r:.200}: repeat its options, or use"
                    " another --out"
                )

    def say(self, text: str) -> None:
        """A line on stderr and, with the time, in log.txt."""
        print(text, file=sys.stderr, flush=True)
        path = self.path / "log.txt"
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        with writing(path), open(path, "a", encoding="utf-8") as file:
            file.write(f"{now} {text}\n")

    @contextlib.contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Logs the stage, and adds its seconds and the largest memory of the process until then to times.csv."""
        self.say(f"{stage} begins")
        start, cpu = time.monotonic(), time.process_time()
        yield
        seconds, path = time.monotonic() - start, self.path / "times.csv"
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        new = not path.exists()
        with writing(path), open(path, "a", newline="") as file:
            rows = csv.writer(file)
            if new:
                rows.writerow(["stage", "seconds", "processor_seconds", "peak_bytes"])
            rows.writerow([stage, f"{seconds:.1f}", f"{time.process_time() - cpu:.1f}", peak])
        self.say(f"{stage} ends after {seconds:,.1f} s; at most {peak / 1e6:,.0f} MB until here")
