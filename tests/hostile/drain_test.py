"""SIGTERM while something around the server hangs: the process ends within --drain-timeout and two seconds, by itself.
drain_test.py --count N [KIND...] runs N drains, the kinds in turn, and prints the distribution of their times."""

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import unittest

import case
import http2
import messages
import serving
from beside import ATTACKER
from faults import Faults
from redis_proxy import Redis, RedisProxy

DRAIN_SECONDS = 1
MOST_SECONDS = DRAIN_SECONDS + 4
MIB = 1 << 20


class Surrounding:
    """Servers and what hangs around them, of one drain."""

    def __init__(self):
        self.folder = serving.temporary_folder("drain")
        self.server, self.clients, self._ends = None, [], []

    def start(self, flags=None, **options):
        self.server = serving.Server({"drain-timeout": f"{DRAIN_SECONDS}s", **(flags or {})}, log=self.folder / "log", **options)
        return self.server

    def connect(self, **options):
        self.clients.append(http2.Connection(self.server.grpc, source=ATTACKER, **options))
        return self.clients[-1]

    def at_end(self, function):
        self._ends.append(function)

    def stop(self):
        if self.server is not None:
            self.server.stop()
        for client in self.clients:
            client.close()
        for end in self._ends:
            end()


def nothing(around):
    around.start()


def running_completions(around):
    around.start()
    for _ in range(32):
        around.connect().call("Complete").send(messages.complete_request("It was", 100000), end=True)


def hung_redis(around, flags=None, **options):
    redis = Redis(around.folder)
    around.at_end(redis.stop)
    proxy = RedisProxy(redis.port)
    around.at_end(proxy.stop)
    around.start({"state-store": f"redis://127.0.0.1:{proxy.port}", **(flags or {})}, **options)
    client = around.connect()
    _, session, _ = client.unary("CreateSession", messages.field(1, 1))
    proxy.mode = "hang"
    client.call("CreateSession").send(messages.field(1, 1), end=True)
    call = client.call("Append")
    call.send(messages.append_request(messages.session_id(session), "It was"), end=True)
    client.call("Complete").send(messages.complete_request("It was", 100000), end=True)  # a drain would store it


def slow_disk(around):
    store = around.folder / "states"
    store.mkdir()
    faults = Faults(store, around.folder / "control")
    around.start({"state-store": f"dir:{store}"}, environment=faults.environment)
    client = around.connect()
    client.unary("CreateSession", messages.field(1, 1))
    faults.set("fsync", delay_ms=60000)
    for _ in range(3):
        client.call("CreateSession").send(messages.field(1, 1), end=True)
    client.call("Complete").send(messages.complete_request("It was", 100000), end=True)


def hung_disk(around, call):
    """A disk that has hung in `call`, as a network file system does: four operations of the store wait in it, and the drain has a
    session and a completion to store. The session is on the disk only."""
    store = around.folder / "states"
    store.mkdir()
    faults = Faults(store, around.folder / "control")
    around.start({"state-store": f"dir:{store}", "session-memory": 1}, environment=faults.environment)
    client = around.connect()
    _, created, _ = client.unary("CreateSession", messages.field(1, 1))
    session = messages.session_id(created)
    append = client.call("Append")
    append.send(messages.append_request(session, "It was"), end=True)
    while append.receive(serving.PATIENCE) is not None:
        pass
    faults.set(call, delay_ms=60000)
    client.call("Complete").send(messages.complete_request("", 100000, session=session), end=True)
    for _ in range(2):
        client.call("ListSessions").send(b"", end=True)
    client.call("CreateSession").send(messages.field(1, 1), end=True)
    client.call("Complete").send(messages.complete_request("It was", 100000), end=True)
    serving.wait_until(lambda: faults.happened(call), f"a {call} that hangs")


def hung_open(around):
    hung_disk(around, "open")


def hung_pread(around):
    hung_disk(around, "pread")


def hung_readdir(around):
    hung_disk(around, "readdir")


def grammar_processes(server):
    """The ids of the host of grammars and of its workers."""
    found, parents = [], [server.pid]
    while parents:
        made = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parents.pop())], capture_output=True, text=True).stdout.split()
        found += map(int, made)
        parents += map(int, made)
    return found


def structured_request(regex):
    return messages.complete_request("It was", 30000, ignore_eos=False) + messages.field(26, messages.field(3, regex))


def stopped_grammar_host(around):
    """The host of grammars and its workers do nothing any more: completions wait for masks, and for grammars."""
    server = around.start()
    call = around.connect().call("Complete")
    call.send(structured_request("[a-z ]{2000,}"), end=True)
    if call.receive(serving.PATIENCE) is None:
        raise AssertionError(f"expected a token, found {call.status} {call.message}")
    processes = grammar_processes(server)
    if len(processes) < 2:
        raise AssertionError(f"expected a host and a worker, found processes {processes}")
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    around.at_end(lambda: end_processes(processes))
    for number in range(4):
        around.connect().call("Complete").send(structured_request(f"[a-z ]{{{number + 1},}}"), end=True)


def end_processes(processes):
    for process in processes:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it ended with the server


def fifo_in_the_store(around):
    store = around.folder / "states"
    store.mkdir()
    around.start({"state-store": f"dir:{store}", "session-memory": 1})
    client = around.connect()
    _, session, _ = client.unary("CreateSession", messages.field(1, 1))
    (file,) = [path for path in store.rglob("session-*") if path.is_file()]
    file.unlink()
    os.mkfifo(file)
    client.call("ListSessions").send(b"", end=True)
    client.call("Append").send(messages.append_request(messages.session_id(session), "It was"), end=True)


def queued_tokenize(around):
    around.start()
    request = messages.field(1, "It was a fine morning in May. " * (4 * MIB // 30 - 8))
    for _ in range(4):
        client = around.connect()
        for _ in range(10):
            client.call("Tokenize").send(request, end=True)


def stalled_log_reader(around, start=Surrounding.start):
    reader, writer = os.pipe()
    around.at_end(lambda: os.close(reader))
    start(around, {"log-level": "debug"}, stderr=writer)
    os.close(writer)
    client = around.connect()
    for _ in range(1500):
        client.unary("Tokenize", messages.field(1, "It was"), timeout=10)


def hung_redis_and_stalled_log_reader(around):
    stalled_log_reader(around, start=hung_redis)


def stalled_readers(around):
    around.start()
    for _ in range(2):
        client = around.connect(window=0)
        for _ in range(64):
            client.call("Complete").send(messages.complete_request("It was", 100000), end=True)
        for _ in range(16):
            client.call("Tokenize").send(messages.field(1, "It was late. " * 1000), end=True)


def silent_streams(around):
    around.start()
    client = around.connect()
    _, session, _ = client.unary("CreateSession")
    client.call("Append").send(messages.append_request(messages.session_id(session), "It was"))
    for method in ("Score", "CompleteStream", "CompleteWithState"):
        for _ in range(16):
            client.call(method)
    for _ in range(32):
        client.call("Complete").send_bytes(b"\0\0\x10\0\0half of a message")


def slow_connections(around):
    server = around.start()
    sockets = []
    for address, opening in ((server.http, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: "), (server.metrics_address, b"GET /metrics HTTP/1.1\r\n"),
                             (server.grpc, b""), (server.grpc, http2.PREFACE[:10])):
        for _ in range(30):
            made = socket.create_connection(address, 2)
            made.sendall(opening)
            sockets.append(made)
    around.at_end(lambda: [made.close() for made in sockets])


def large_prompts(around):
    around.start()
    request = messages.complete_request("It was a fine morning in May. " * 37000, 1, echo=True, logprobs=20)
    for _ in range(4):
        around.connect().call("CompleteUnary").send(request, end=True)


KINDS = (nothing, running_completions, hung_redis, slow_disk, hung_open, hung_pread, hung_readdir, fifo_in_the_store,
         queued_tokenize, stalled_log_reader, hung_redis_and_stalled_log_reader, stopped_grammar_host, stalled_readers,
         silent_streams, slow_connections, large_prompts)


def drain(kind):
    """(seconds from SIGTERM to the end of the process, or to the kill after a minute; exit status)"""
    around = Surrounding()
    try:
        kind(around)
        time.sleep(0.3)
        process = around.server.process
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except serving.subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return time.monotonic() - began, process.returncode
    finally:
        around.stop()


def drains(count, kinds=KINDS):
    """A Markdown table of N drains, the kinds in turn, and (kind, seconds, exit status) of each."""
    every = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        every.append((kind.__name__, *drain(kind)))
    lines = ["| surrounding | drains | shortest, s | median, s | longest, s |", "|---|---|---|---|---|"]
    for name in [*dict.fromkeys(kind for kind, _, _ in every), "all"]:
        times = [seconds for kind, seconds, _ in every if name in (kind, "all")]
        lines.append(f"| {name.replace('_', ' ')} | {len(times)} | {min(times):.2f} | {statistics.median(times):.2f} | {max(times):.2f} |")
    return "\n".join(lines), every


class Drain(case.HostileTest):
    def test_each_kind(self):
        """Once, or 100 drains with full counts."""
        table, every = drains(100 if case.FULL else len(KINDS))
        print("\n" + table, flush=True)
        for kind, seconds, status in every:
            with self.subTest(surrounding=kind):
                # Other programs may have had the processors. A drain that is late by itself is late again.
                if seconds > MOST_SECONDS:
                    seconds, status = drain(next(one for one in KINDS if one.__name__ == kind))
                    print(f"{kind} again: {seconds:.2f} s", flush=True)
                self.assertIn(status, (0, 1), "the server does not die of a signal")
                self.assertLessEqual(seconds, MOST_SECONDS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, metavar="N", required=True)
    names = {kind.__name__: kind for kind in KINDS}
    parser.add_argument("kinds", metavar="KIND", nargs="*", help=", ".join(names))
    chosen = parser.parse_args()
    if unknown := set(chosen.kinds) - names.keys():
        parser.error(f"KIND: expected {', '.join(names)}; found {', '.join(sorted(unknown))}")
    made, results = drains(chosen.count, [names[name] for name in chosen.kinds] or KINDS)
    print(made)
    sys.exit(any(seconds > MOST_SECONDS or status not in (0, 1) for _, seconds, status in results))
