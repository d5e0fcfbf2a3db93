"""Processes that run some at a time, if wanted in the scheduling class of idle time (SCHED_IDLE)."""

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

_POLL_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Job:
    name: str
    command: list
    log: pathlib.Path  # the process's output is appended to it
    folder: pathlib.Path = pathlib.Path(".")  # in which the process runs


class Busy(Exception):
    """Another process works in the folder."""


@contextlib.contextmanager
def only_one(folder: pathlib.Path) -> Iterator[None]:
    """Makes the folder and holds its lock. Busy: another process holds it. Jobs that are started meanwhile hold it too, until they
    end: after kill -9 of this process nothing else works beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Busy(f"{folder}: another process works here") from error
        os.set_inheritable(lock.fileno(), True)
        yield


def run_jobs(
    jobs: list[Job], *, at_once: int, threads: int, ended: Callable[[Job, int], None], idle: bool = True
) -> list[str]:
    """Runs all jobs, `at_once` at a time with `threads` threads each; ended(job, exit status) follows each. idle: in SCHED_IDLE.
    Returns the names of the jobs that failed. When it is left early, it ends the processes."""
    waiting, running, failed = list(jobs), [], []
    for number in (signal.SIGTERM, signal.SIGHUP):  # to leave by `finally`: sessions of their own outlive a terminal
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running.append((job, _start(job, threads, idle)))
            time.sleep(_POLL_SECONDS)
            for job, process in [pair for pair in running if pair[1].poll() is not None]:
                running.remove((job, process))
                failed += [job.name] if process.returncode else []
                ended(job, process.returncode)
    finally:
        for _, process in running:
            process.terminate()
        for _, process in running:
            process.wait()
    return failed


def _start(job: Job, threads: int, idle: bool) -> subprocess.Popen:
    def become_idle() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        # With autogroups the scheduler shares time between sessions first, whatever the classes of their processes.
        os.setsid()
        with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as nice:
            nice.write("19")

    with job.log.open("a") as log:
        return subprocess.Popen(
            list(map(str, job.command)),
            cwd=job.folder,
            close_fds=False,  # the lock
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=become_idle if idle else None,
        )
