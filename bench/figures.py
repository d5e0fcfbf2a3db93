"""Draws time a token by context of every attention kind on this machine: prefill and decoding of served kinds (polysketch-bench
on random model folders), forward and backward passes of training of all kinds (the torch module on one row).

Writes OUT/figures.json, which has every point, and OUT/speed-SHAPE.svg and .png: SHAPE is 110m (12 layers, width 768, 512 to
65,536 tokens, 1,048,576 for prefill and decoding of recurrent kinds) and 4-layers (the same width, 32,768 tokens). A point is the
median of --repeats runs; a run of training above 20 s, and a prompt above 16,384 tokens, is the only one. A job, prefill with
decoding or forward with backward of one kind at one context, that reaches --limit-seconds or --memory has the status "too slow"
or "out of memory", and so have longer contexts of the kind, which are not measured. Runs of training before a limit count. A job that
fails otherwise has no point; what it said is printed at the end.

The same command continues: points of the same commit, machine and settings in OUT/figures.json are not measured again. Other
points are kept in OUT/figures-N.json. A higher limit measures the points again that reached the lower one, more repeats
those that had fewer, among the kinds, measures and contexts that are asked for."""

import argparse
import contextlib
import os
import pathlib
import platform
import signal
import sys
import time

import figures_draw
import limited
from figures_measure import Limits, Meter, Settings, limit_of
from figures_plan import BLOCK_SHAPES, KINDS, MEASURES, QUICK_SHAPES, SHAPES, Job, jobs
from figures_store import ROOT, Store, commit, key_of

from polysketch_tools.errors import ToolError, run


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/figures", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR", help="folder of the figures")
    parser.add_argument("--quick", action="store_true", help="models of width 64, contexts up to 1,024: minutes, to try this program")
    parser.add_argument("--blocks", action="store_true", help="4 layers, 8,192 tokens, blocks of 1 to 1,024 tokens, in place of the shapes")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, metavar="KIND", help="attention kinds (default: all)")
    parser.add_argument(
        "--measures", nargs="+", choices=MEASURES, default=tuple(MEASURES), metavar="MEASURE", help=f"{', '.join(MEASURES)} (default: all)"
    )
    parser.add_argument("--contexts", nargs="+", type=int, metavar="N", help="contexts of the shapes (default: all)")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/cpu/bin", help="folder of polysketch-bench")
    parser.add_argument(
        "--models", type=pathlib.Path, default=ROOT / ".deps/figures", metavar="DIR", help="where model folders are made and kept"
    )
    parser.add_argument(
        "--weights", choices=("f32", "bf16", "f16", "q8", "q4"), default="bf16", help="of served models (default bf16)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: training in bf16 (default cpu)")
    parser.add_argument(
        "--attention", choices=("torch", "library"), default="torch",
        help="of training; library: libpolysketch-attention.so, named by POLYSKETCH_ATTENTION_LIBRARY, for the kinds that it has",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all CPUs")
    parser.add_argument("--repeats", type=int, help="default 3, with --quick 1")
    parser.add_argument("--limit-seconds", type=float, metavar="X", help="time of a job (default 600, with --quick 60)")
    parser.add_argument(
        "--memory", type=float, metavar="GiB", help="memory of a job on the cpu (default: three quarters of the machine's)"
    )
    parser.add_argument("--commit", metavar="NAME", help="of the tree where git does not know it (default: what git says)")
    return parser.parse_args(argv)


def command(argv: list[str]) -> None:
    args = parse(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was measured is drawn
    limits = Limits(args.limit_seconds or (60 if args.quick else 600), _memory(args))
    settings = Settings(args.threads, args.weights, args.device, args.repeats or (1 if args.quick else 3), args.attention)
    shapes = BLOCK_SHAPES if args.blocks else QUICK_SHAPES if args.quick else SHAPES
    args.out.mkdir(parents=True, exist_ok=True)
    about = {"commit": args.commit or commit(), "machine": _machine(args.device), "settings": settings.to_dict()}
    planned = [job for job in jobs(shapes, args.kinds, args.measures) if not args.contexts or job.context in args.contexts]
    asked = {key_of(job.point(measure)) for job in planned for measure in job.measures}
    store = Store(args.out / "figures.json", about, lambda point: key_of(point) not in asked or _counts(point, limits, settings.repeats))
    try:
        with contextlib.closing(Meter(args.bin, args.models, settings, limits)) as meter:
            failures = _measure(store, meter, limits, planned)
    finally:
        _draw(store, shapes, args.out)
    if failures:
        raise ToolError("\n".join([f"{len(failures)} of {len(planned)} jobs failed:", *failures]))


def _measure(store: Store, meter: Meter, limits: Limits, planned: list[Job]) -> list[str]:
    """Returns what the jobs said that failed, and not by a limit; the others are measured."""
    failures = []
    for number, job in enumerate(planned, 1):
        begin = time.monotonic()
        name = f"{job.shape.name} {job.kind} {job.context}"
        try:
            points = _points(store, meter, limits, job)
        except limited.ChildError as error:
            failures.append(f"{name}: {error}")
            print(f"[{number}/{len(planned)}] {name}: failed", flush=True)
            continue
        for point in points:
            store.add(point)
        found = (store.find(job.point(measure)) for measure in job.measures)
        values = ", ".join(f"{point['measure']} {_value(point)}" for point in found)
        seconds = time.monotonic() - begin
        print(f"[{number}/{len(planned)}] {name}: {values} ({seconds:.1f} s)", flush=True)
    return failures


def _points(store: Store, meter: Meter, limits: Limits, job: Job) -> list[dict]:
    """Returns the points of a job that the store lacks, measured unless a shorter context reached a limit."""
    missing = [measure for measure in job.measures if store.find(job.point(measure)) is None]
    points, left = [], []
    for measure in missing:
        shorter = _limited_before(store, job, measure)
        if shorter is None:
            left.append(measure)
        else:
            reached = {"status": shorter["status"], "reached_at_context": shorter["context"]}
            points.append(job.point(measure) | reached | limit_of(shorter["status"], limits))
    if left:
        measured = meter.measure(Job(job.shape, job.kind, job.context, tuple(left)))
        points += measured
    return points


def _limited_before(store: Store, job: Job, measure: str) -> dict | None:
    """Returns the point of a shorter context that reached a limit, or None."""
    for context in job.shape.contexts:
        point = store.find(job.point(measure) | {"context": context}) if context < job.context else None
        if point is not None and point["status"] != limited.MEASURED and "reached_at_context" not in point:
            return point
    return None


def _value(point: dict) -> str:
    return f"{point['us_per_token']:.1f} us a token" if point["status"] == limited.MEASURED else point["status"]


def _draw(store: Store, shapes, out: pathlib.Path) -> None:
    store.write()
    about = f"{store.about['machine']['name']}, {store.about['settings']['threads']} threads, commit {store.about['commit']}"
    dates = sorted(point["date"][:10] for point in store.points)
    for shape in shapes:
        canvas = figures_draw.draw(shape, store.points, f"{about}, {dates[-1] if dates else ''}")
        if canvas is not None:
            figures_draw.write(canvas, out / f"speed-{shape.name}")


def _memory(args) -> int:
    """Returns the bytes of a job; 0: no limit, as a GPU's driver reserves more than it uses."""
    if args.device != "cpu":
        return 0
    return int(args.memory * (1 << 30)) if args.memory else _physical_memory() * 3 // 4


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _counts(point: dict, limits: Limits, repeats: int) -> bool:
    """Whether a point of an earlier run would be no other under these limits, and has as many repeats."""
    if point["status"] == limited.MEASURED:
        return point["repeats"] >= repeats
    if point["status"] == limited.TOO_SLOW:
        return point["limit_s"] >= limits.seconds
    return point["limit_bytes"] >= limits.memory


def _machine(device: str) -> dict:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    if device == "cuda":
        import torch

        name = f"{torch.cuda.get_device_name()}, {name}"
    return {"name": name, "cpus": os.cpu_count(), "memory_bytes": _physical_memory()}


if __name__ == "__main__":
    run(command)
