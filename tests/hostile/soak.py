#!/usr/bin/env python3
"""Loads one server for a long time with everything at once, and checks that it answers rightly and keeps nothing.

    soak.py [--minutes N] [--clients N] [--store dir|redis] [--server BIN] [--seed N] [--json FILE]

The load: completions of several lengths, in one message and in chunks (CompleteStream), with a state that the client keeps
(CompleteWithState) and with structured output, CompleteUnary, Score and Tokenize over gRPC, completions and chats over HTTP, and
sessions
(created, appended to, continued, scored, snapshot, restored, forked, deleted), on a state store whose faults come and go. Of the
calls at least 20% are cancelled and 5% have a client that stalls. Sessions have little memory, so that they go to the store and back.

The time is divided into ten rounds. After each the load pauses, and must have left nothing: descriptors, threads (the pools of
gRPC and of the folder store have a bound instead), connections, calls, running and waiting requests, sessions, entries of the store, and the bytes of
slots, sessions and requests are those of before the first round. Every answer must be that of the same server before the load.
After the first round the resident memory may grow by 32 MiB, during the rounds and between them, and the live
heap between the rounds, without the prefix cache, by 4 MiB. The table has a row for each round. The exit status is 0 only if
everything held."""

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time

import serving
from attack_run import warm_up
from heap import Heap
from soak_calls import CHAT_TEMPLATE, STALL_SECONDS
from soak_client import Client, Expected, Tally
from soak_store import FaultTimes, FolderStore, RedisStore

MIB = 1 << 20
ROUNDS = 10
SAMPLE_SECONDS = 10
MOST_ROUNDS = 4  # times the number of rounds
WARM_SECONDS = 20  # of load without faults, at most, before the numbers that must come back are taken
RESIDENT_GROWTH, HEAP_GROWTH = 32.0, 4.0  # MiB
SETTLED = 30  # seconds in which a server without load must be as before
LEAST_SHARES = {"cut": 0.2, "stalled": 0.05}  # of the calls, from FEW_CALLS on
FEW_CALLS = 3000
MOST_WRONG = 5  # answers of a round that are told
FLAGS = {"request-memory": "128MiB", "session-memory": "16MiB", "stall-deadline": f"{STALL_SECONDS}s", "log-level": "warning"}
# Threads that are started when there is work for another, and kept: the most of each. gRPC's pools have at most two for each
# processor. Operations of a folder store run on as many as run at once: those of the 8 threads of the store, a sweep, a listing.
POOLS = dict.fromkeys(("default-executo", "resolver-execut", "event_engine", "timer_manager", "grpc_global_tim"), 2 * os.cpu_count())
POOLS |= {"ps-store-folder": 10}
COUNTS = ("connections", "calls_in_flight", "num_requests_running", "num_requests_waiting", "num_requests_preempted", "sessions",
          "slot_memory_bytes", "preempted_memory_bytes", "session_memory_bytes")


@dataclasses.dataclass
class Sample:
    resident: float  # MiB
    descriptors: int  # but those of connections to Redis
    threads: dict  # name -> number
    metrics: dict
    stored: int  # entries of the state store

    def own_threads(self):
        return {name: count for name, count in self.threads.items() if name not in POOLS}

    def all_threads(self):
        return sum(self.threads.values())

    def held(self):
        """What must come back to where it was."""
        counts = {name: self.metrics[f"polysketch_{name}"] for name in COUNTS}
        memory = sum(value for name, value in self.metrics.items() if name.startswith("polysketch_request_memory_bytes{"))
        return {"descriptors": self.descriptors, "threads": self.own_threads(), "stored": self.stored, **counts, "request_memory_bytes": memory}


@dataclasses.dataclass
class Round:
    number: int
    calls: int = 0
    cut: int = 0
    stalled: int = 0
    faults: int = 0
    peak: Sample = None  # the most of each during the load
    after: float = 0.0  # resident MiB after it
    heap: float = 0.0  # MiB after it, without the prefix cache

    def markdown(self):
        metrics = self.peak.metrics
        return (f"| {self.number} | {self.calls} | {self.cut} | {self.stalled} | {self.faults} | {self.peak.resident:.1f} | "
                f"{self.after:.1f} | {self.heap:.2f} | {self.peak.descriptors} | {self.peak.all_threads()} | "
                f"{metrics['polysketch_num_requests_running']:.0f} | {metrics['polysketch_sessions']:.0f} | "
                f"{self.peak.held()['request_memory_bytes'] / MIB:.2f} |")


HEADER = ("| round | calls | cancelled | stalled | faults | RSS during, MiB | RSS after, MiB | live heap after, MiB | fds | threads | "
          "slots | sessions | request memory, MiB |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|")


def model_with_chat(folder):
    """models/demo with a chat template."""
    model = folder / "demo"
    model.mkdir()
    for file in (serving.ROOT / "models/demo").iterdir():
        (model / file.name).symlink_to(file)
    (model / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return model


class Soak:
    def __init__(self, folder, minutes, clients=8, store="dir", binary=None, seed=1, rounds=ROUNDS):
        self._rounds, self._round_seconds = rounds, minutes * 60 / rounds
        self.tally, self.broken, self.rounds = Tally(), [], []
        self.store = FolderStore(folder) if store == "dir" else RedisStore(folder)
        self._heap = Heap(folder / "heap")
        environment = {**self.store.environment, **self._heap.environment}
        preloads = [one["LD_PRELOAD"] for one in (self.store.environment, self._heap.environment) if "LD_PRELOAD" in one]
        environment["LD_PRELOAD"] = ":".join(preloads)
        flags = {**FLAGS, "model": model_with_chat(folder), "model-root": serving.ROOT / "models/demo", "state-store": self.store.url}
        self.server = serving.Server(flags, binary, log=folder / "server.log",
                                     environment=environment)
        self._faults = FaultTimes(self.store, seed)
        self._expected = Expected(self.server)
        self._clients = [Client(number, self.server, self._expected, self.tally, self._faults.excuse, seed)
                         for number in range(clients)]
        self._baseline = None

    def stop(self):
        self.server.stop()
        self.store.stop()

    def run(self, told=print):
        """All rounds; `told` gets the rows of the table, and what did not hold."""
        warm_up(self.server)  # a slot keeps its memory
        self._load(min(WARM_SECONDS, self._round_seconds), faults=False)
        self._baseline = serving.wait_until(self._idle, "a server without calls")
        told(HEADER)
        # More of them while none of the faults has met a call, as in short rounds on a machine that is busy.
        while len(self.rounds) < self._rounds or (not self.store.happened and len(self.rounds) < MOST_ROUNDS * self._rounds):
            known = len(self.broken)
            self._round(len(self.rounds) + 1)
            for line in (self.rounds[-1].markdown(), *self.broken[known:]):
                told(line)
        self._judge()

    def report(self):
        """What was called, and what did not hold."""
        counts = sorted(self.tally.calls.items())
        lines = [f"{method}: " + ", ".join(f"{count} {outcome}" for (one, outcome), count in counts if one == method)
                 for method in sorted({method for (method, _), _ in counts})]
        shares = ", ".join(f"{100 * self.tally.total(kind) / max(1, self.tally.total()):.2f}% {kind}" for kind in LEAST_SHARES)
        lines.append(f"{self.tally.total()} calls: {shares}")
        return lines + [f"before the load: {self._baseline}"] + [f"BROKEN: {text}" for text in self.broken]

    def _load(self, seconds, faults):
        """The samples of some time of load."""
        if faults:
            self._faults.start()
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=client.run, args=(until,), daemon=True) for client in self._clients]
        for thread in threads:
            thread.start()
        samples = [self._sample()]
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(SAMPLE_SECONDS, left, max(1.0, seconds / 5)))
            samples.append(self._sample())
        for thread in threads:
            thread.join(2 * serving.PATIENCE + seconds)
        if any(thread.is_alive() for thread in threads):
            raise AssertionError("a client did not end")
        self._faults.stop()
        for client in self._clients:
            client.finish()
        return samples

    def _round(self, number):
        row = Round(number)
        before = (self.tally.total(), self.tally.total("cut"), self.tally.total("stalled"), self.store.happened)
        samples = self._load(self._round_seconds, faults=True)
        after = (self.tally.total(), self.tally.total("cut"), self.tally.total("stalled"), self.store.happened)
        row.calls, row.cut, row.stalled, row.faults = (now - then for now, then in zip(after, before, strict=True))
        names = samples[0].metrics.keys() & samples[-1].metrics.keys()
        row.peak = Sample(max(sample.resident for sample in samples), max(sample.descriptors for sample in samples),
                          max(samples, key=Sample.all_threads).threads,
                          {name: max(sample.metrics.get(name, 0.0) for sample in samples) for name in names},
                          max(sample.stored for sample in samples))
        wrong = self.tally.take_wrong()
        self.broken += [f"round {number}: {text}" for text in wrong[:MOST_WRONG]]
        if len(wrong) > MOST_WRONG:
            self.broken.append(f"round {number}: and {len(wrong) - MOST_WRONG} more wrong answers")
        now = self._settle()
        row.after = now.resident
        row.heap = (self._heap.live_bytes() - now.metrics["polysketch_prefix_cache_bytes"]) / MIB
        self.rounds.append(row)

    def _sample(self):
        process = pathlib.Path(f"/proc/{self.server.pid}")
        if not self.server.alive():
            raise AssertionError(f"the server ended with status {self.server.process.poll()}: {self.server.log()[-2000:]}")
        descriptors = len(list((process / "fd").iterdir())) - self.store.connections()
        return Sample(self.server.resident_mib(), descriptors, self._threads(), self.server.metrics(), self.store.entries())

    def _threads(self):
        names = collections.Counter()
        for task in pathlib.Path(f"/proc/{self.server.pid}/task").iterdir():
            try:
                names[(task / "comm").read_text().strip()] += 1
            except OSError:  # the thread has just ended
                pass
        return dict(names)

    def _idle(self):
        """What the server holds, or None unless two samples some time apart are equal and nothing is of clients."""
        one = self._sample().held()
        time.sleep(STALL_SECONDS)
        held = self._sample().held()
        return held if one == held and not any(held[name] for name in (*COUNTS, "request_memory_bytes")) else None

    def _settle(self):
        """The server without load. What does not come back to its number of before is broken."""
        wanted, end = self._baseline, time.monotonic() + SETTLED
        while (now := self._sample()).held() != wanted and time.monotonic() < end:
            time.sleep(0.2)
        self.broken += [f"round {len(self.rounds) + 1}: {now.threads[name]} threads {name}, at most {most}"
                        for name, most in POOLS.items() if now.threads.get(name, 0) > most]
        differs = {name: value for name, value in now.held().items() if value != wanted[name]}
        self.broken += [f"round {len(self.rounds) + 1}: {name} is {value}, before the load {wanted[name]}"
                        for name, value in differs.items()]
        return now

    def _judge(self):
        first, others = self.rounds[0], self.rounds[1:]
        for name, most, value in (("resident memory during a round", RESIDENT_GROWTH, lambda row: row.peak.resident),
                                  ("resident memory after a round", RESIDENT_GROWTH, lambda row: row.after),
                                  ("live heap after a round", HEAP_GROWTH, lambda row: row.heap)):
            growth = max(value(row) for row in others) - value(first)
            if growth > most:
                self.broken.append(f"{name}: {growth:.2f} MiB more than after the first, at most {most:.0f}")
        for kind in ("cut", "stalled"):
            share = self.tally.total(kind) / max(1, self.tally.total())
            if share < (LEAST_SHARES[kind] if self.tally.total() >= FEW_CALLS else 1e-9):
                self.broken.append(f"{100 * share:.2f}% of the calls were {kind}")
        if not self.store.happened:
            self.broken.append("no fault happened")
        answer = self.server.serving()
        if answer != "SERVING":
            self.broken.append(f"health: {answer}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", metavar="N", type=float, default=60)
    parser.add_argument("--clients", metavar="N", type=int, default=8)
    parser.add_argument("--store", choices=("dir", "redis"), default="dir")
    parser.add_argument("--server", metavar="BIN")
    parser.add_argument("--seed", metavar="N", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the server is ended too
    folder = serving.temporary_folder("soak")
    soak = Soak(folder, chosen.minutes, chosen.clients, chosen.store, chosen.server, chosen.seed)
    try:
        soak.run(lambda text: print(text, flush=True))
        print("\n".join(soak.report()), flush=True)
        if chosen.json:
            pathlib.Path(chosen.json).write_text(json.dumps([dataclasses.asdict(row) for row in soak.rounds], indent=1))
    finally:
        soak.stop()
    return 1 if soak.broken else 0


if __name__ == "__main__":
    sys.exit(main())
