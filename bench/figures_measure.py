"""Measures one job of bench/figures: polysketch-bench on a random model folder, or training_point.py."""

import dataclasses
import hashlib
import json
import pathlib
import sys

import limited
from figures_plan import SERVED, Job

from polysketch_tools.make_random import make_random

_HERE = pathlib.Path(__file__).resolve().parent


@dataclasses.dataclass(frozen=True)
class Limits:
    seconds: float  # of a job
    memory: int  # bytes of a job


@dataclasses.dataclass(frozen=True)
class Settings:
    threads: int
    weights: str
    device: str
    repeats: int
    attention: str  # of training: torch or library

    def to_dict(self) -> dict:
        """Without the number of repeats, which every point has."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "repeats"}


class Meter:
    """Measures jobs. Prefill and decoding have a process for each job; training has one for all, which has loaded PyTorch."""

    def __init__(self, programs: pathlib.Path, models: pathlib.Path, settings: Settings, limits: Limits):
        self._bench, self._models, self._settings, self._limits = programs / "polysketch-bench", models, settings, limits
        self._trainer = limited.Worker(self._training_command(), memory=limits.memory)

    def close(self) -> None:
        self._trainer.close()

    def measure(self, job: Job) -> list[dict]:
        """Returns a point for each measure of the job: status, and what was measured or the limit that was reached."""
        seconds = self._limits.seconds
        if job.measures[0] in SERVED:
            outcome = limited.run(self._bench_command(job), seconds=seconds, memory=self._limits.memory)
            rows = _served_rows(outcome.output, job)
        else:
            outcome = self._trainer.ask(_training_request(job), seconds=seconds)
            rows = _trained_rows(outcome.output, job)
        return [self._point(job, measure, rows.get(measure), outcome.status) for measure in job.measures]

    def _point(self, job: Job, measure: str, row: dict | None, status: str) -> dict:
        point = job.point(measure)
        if row is not None:
            return point | {"status": limited.MEASURED, "repeats": self._settings.repeats} | row
        if status == limited.MEASURED:
            raise limited.ChildError(f"{job.kind}: expected the measure {measure} at {job.context} tokens, found none")
        return point | {"status": status} | limit_of(status, self._limits)

    def _bench_command(self, job: Job) -> list:
        settings = self._settings
        return [
            self._bench, "--json", "--model", self._folder(job), "--device", settings.device, "--weights", settings.weights,
            "--stages", ",".join(job.measures), "--prefill", job.context, "--decode", job.context, "--batches", "none",
            "--threads", settings.threads, "--repeats", settings.repeats, "--decode-blocks", settings.repeats,
        ]  # fmt: skip

    def _training_command(self) -> list:
        settings = self._settings
        return [
            sys.executable, "-B", _HERE / "training_point.py", "--repeats", settings.repeats, "--threads", settings.threads,
            "--device", settings.device, "--attention", settings.attention,
        ]  # fmt: skip

    def _folder(self, job: Job) -> pathlib.Path:
        """Returns a random model folder of the job's shape and kind, made once."""
        config = job.shape.config_of(job.kind)
        checksum = hashlib.sha256(config.to_json().encode()).hexdigest()[:8]
        folder = self._models / f"{job.shape.name}-{job.kind}-{checksum}"
        if not folder.exists():
            make_random(config, folder)
        return folder


def limit_of(status: str, limits: Limits) -> dict:
    return {"limit_s": limits.seconds} if status == limited.TOO_SLOW else {"limit_bytes": limits.memory}


def _training_request(job: Job) -> str:
    config = dataclasses.asdict(job.shape.config_of(job.kind))
    return json.dumps({"config": config, "length": job.context, "measures": job.measures})


def _served_rows(output: str, job: Job) -> dict[str, dict]:
    """Of polysketch-bench, which prints one object at its end."""
    rows = {}
    for row in json.loads(output)["results"] if output else []:
        if row.get("attention") != job.kind:
            found = row.get("attention", "no kind: build polysketch-bench anew")
            raise limited.ChildError(f"polysketch-bench: expected rows of {job.kind}, found {found}")
        rows[row["stage"]] = _timed(row["seconds"], row["tokens"]) | {
            name: row[name] for name in ("state_bytes", "weights", "state") if name in row
        }
    return rows


def _trained_rows(output: str, job: Job) -> dict[str, dict]:
    """Of training_point.py: the last whole line of each measure counts."""
    rows = {}
    for line in output.splitlines(keepends=True):
        if line.endswith("\n") and line.strip():
            row = json.loads(line)
            rows[row["measure"]] = _timed(row["seconds"], job.context) | {"runs": row["runs"], "backend": row["backend"]}
    return rows


def _timed(seconds: float, tokens: int) -> dict:
    return {"us_per_token": 1e6 * seconds / tokens, "seconds": seconds, "tokens": tokens}
