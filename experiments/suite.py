"""The driver of experiments whose runs are independent processes: each trains a model, measures it and writes a result."""

import argparse
import fnmatch
import json
import pathlib
import sys
import time
from collections.abc import Callable

import jobs
import results

ROOT = pathlib.Path(__file__).resolve().parents[1]


def _parse(folder: pathlib.Path, add_options) -> argparse.Namespace:
    """Reads the options that the experiments share, and those of this one."""
    description = sys.modules["__main__"].__doc__
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=pathlib.Path, metavar="RUNS", help="folder of the runs, outside the tree")
    parser.add_argument("--quick", action="store_true", help="runs quick.json; results go to RUNS/results")
    parser.add_argument("--plan", type=pathlib.Path, help="another plan")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="runs whose name matches, as 'reversal-*'")
    parser.add_argument("--results", type=pathlib.Path, help="folder of the results (default: results beside the plan)")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/cpu/bin", help="folder of polysketch-server")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # the run that a process of the driver makes
    add_options(parser)
    args = parser.parse_args()
    args.runs = args.runs.resolve()
    args.plan = args.plan or folder / ("quick.json" if args.quick else "plan.json")
    args.results = (args.results or (args.runs if args.quick else folder) / "results").resolve()
    return args


def main(
    script: str,
    *,
    expand: Callable[[dict], dict[str, dict]],
    measure: Callable[[dict, pathlib.Path, argparse.Namespace], dict],
    summary: Callable[[dict], str],
    prepare: Callable[[dict, argparse.Namespace], None] = lambda plan, args: None,
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> None:
    """Makes the runs of a plan that have no result.

    expand(plan): the runs by name. prepare(plan, args) makes what all runs read. measure(run, folder, args) trains a run in
    `folder` with args.threads threads, going on from what an earlier process left there, and returns what was measured.
    summary(result): a few words for the line of progress.
    """
    folder = pathlib.Path(script).resolve().parent
    args = _parse(folder, add_options)
    plan = json.loads(args.plan.read_text())
    runs, args.threads = expand(plan), plan["threads"]
    if args.one is not None:
        _make_one(args.one, runs[args.one], measure, args)
        return
    try:
        with jobs.only_one(args.runs):
            prepare(plan, args)
            failed = _make_all(script, plan, runs, summary, args)
    except jobs.Busy as error:
        sys.exit(str(error))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; the ends of their logs in {args.runs} say why")


def _make_one(name: str, run: dict, measure, args) -> None:
    _claim(args.runs / f"{name}.run.json", run)
    began = time.monotonic()
    found = measure(run, args.runs / name, args)
    seconds = round(time.monotonic() - began, 1)  # of this process
    results.write(args.results / f"{name}.json", {"name": name, "run": run, **found, "seconds": seconds, **results.origin()})


def _claim(path: pathlib.Path, run: dict) -> None:
    """Notes which run a folder has, or checks that it is the same one."""
    if not path.exists():
        results.write(path, run)
    elif json.loads(path.read_text()) != run:
        sys.exit(f"{path}: expected the plan's run, found another; use another folder of runs")


def _make_all(script: str, plan: dict, runs: dict, summary, args) -> list[str]:
    names = [name for name in runs if fnmatch.fnmatch(name, args.only)]
    missing = [name for name in names if _missing(args.results / f"{name}.json", runs[name])]
    began, done = time.monotonic(), 0
    print(f"{len(names)} runs, {len(names) - len(missing)} have results", flush=True)

    def ended(job: jobs.Job, status: int) -> None:
        nonlocal done
        done += 1
        hours = (time.monotonic() - began) / 3600
        left = hours / done * (len(missing) - done)
        path = args.results / f"{job.name}.json"
        said = summary(json.loads(path.read_text())) if status == 0 else f"exit status {status}, {job.log}"
        print(f"[{done}/{len(missing)}] {job.name}: {said}; {hours:.1f} h, about {left:.1f} h left", flush=True)

    again = [sys.executable, "-B", script, *sys.argv[1:], "--one"]
    queue = [jobs.Job(name, [*again, name], args.runs / f"{name}.log") for name in missing]
    return jobs.run_jobs(queue, at_once=plan["jobs"], threads=args.threads, ended=ended, idle=not args.quick)


def _missing(path: pathlib.Path, run: dict) -> bool:
    if not path.exists():
        return True
    if json.loads(path.read_text())["run"] != run:
        sys.exit(f"{path}: expected the result of the plan's run, found that of another; move it away")
    return False
