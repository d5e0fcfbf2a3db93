"""Limits of the process, a clock that jumps and a log that is not read."""

import json
import os
import resource
import subprocess
import time
import unittest

import case
import http2
import messages
import serving
from attack_run import FLAGS, REQUEST_MEMORY, SPARE, warm_up
from beside import ATTACKER, Child
from faults import Faults, library

MIB = 1 << 20
DAY = 24 * 3600
STACK = 8 * MIB
THREADS = 24  # that the server may start during an attack: 10 connections of the attacker, those of the neighbour and of probes


class Limits(case.HostileTest):
    def test_descriptors(self):
        """More connections than the process may have descriptors: refused, and served again when they have left."""
        limit = 96
        server = self.server(descriptors=limit)
        beside = self.beside(server)
        made = []
        for _ in range(3 * limit):
            try:
                made.append(http2.Connection(server.grpc, source=ATTACKER, timeout=2))
            except (OSError, http2.Closed):
                pass
        self.assertTrue(server.alive())
        for one in made:
            one.close()
        serving.wait_until(lambda: server.serving(timeout=2) == "SERVING", "a server with descriptors", 15)
        told = beside.stop()
        self.assertEqual(case.REFERENCE.differences(told["streams"]), [])
        self.assert_in_time(told, "token")
        self.assert_serving(server)

    def attack_within(self, name):
        """The memory of the process has a hard limit, start + --request-memory + 64 MiB: no allocation may fail. The kernel
        counts the stack of a thread whole, and connections have threads."""
        server = self.server(FLAGS)
        warm_up(server)
        beside = self.beside(server)
        used = int(open(f"/proc/{server.pid}/status").read().split("VmData:")[1].split()[0]) * 1024
        most = used + (REQUEST_MEMORY + SPARE) * MIB + THREADS * STACK
        resource.prlimit(server.pid, resource.RLIMIT_DATA, (most, most))
        target = {"grpc": server.ready["listen"], "http": server.ready["http"], "metrics": server.ready["metrics"]}
        attacker = Child("attack.py", name, json.dumps({**target, "source": ATTACKER, "seconds": 4, "full": False}))
        self.assertTrue(attacker.result(60), "the attack did not end")
        self.assert_serving(server)
        self.assert_unharmed(beside)

    def test_memory_beside_half_sent_messages(self):
        self.attack_within("half_messages")

    def test_memory_beside_silent_uploads(self):
        self.attack_within("silent_states")

    def test_threads(self):
        """The process may have no more threads than at its start, as under pids.max: calls of every kind are answered, and a
        neighbour notices nothing."""
        limit = self.folder / "threads"
        server = self.server({**FLAGS, "state-store": f"dir:{self.folder / 'states'}"}, environment={
            "LD_PRELOAD": str(library("../testing/thread_limit.c")), "THREAD_LIMIT": str(limit)})
        limit.write_text(str(len(os.listdir(f"/proc/{server.pid}/task"))))
        beside = self.beside(server)
        target = {"grpc": server.ready["listen"], "http": server.ready["http"], "metrics": server.ready["metrics"]}
        for name in ("open_streams", "grammars", "disconnects", "slow_http"):
            attacker = Child("attack.py", name, json.dumps({**target, "source": ATTACKER, "seconds": 3, "full": False}))
            self.assertTrue(attacker.result(60), f"{name} did not end")
        client = self.sessions(server)
        _, session = client.create(durable=True)
        self.assertEqual(client.append(session, "It was a fine morning"), "OK")
        self.assert_serving(server)
        self.assert_unharmed(beside)
        server.process.terminate()
        self.assertEqual(server.process.wait(60), 0)

    def test_address_space(self):
        """ulimit -v 520 MiB: a server that has started stays, whatever it is sent, and serves again."""
        server = self.server({"request-memory": "512MiB"}, address_space=520 * MIB)
        target = {"grpc": server.ready["listen"], "http": server.ready["http"], "metrics": server.ready["metrics"]}
        for name in ("half_messages", "silent_states", "http_half_bodies", "tokenize_cancelled", "unread_replies"):
            attacker = Child("attack.py", name, json.dumps({**target, "source": ATTACKER, "seconds": 3, "full": False}))
            self.assertTrue(attacker.result(60), f"{name} did not end")
            self.assertTrue(server.alive(), f"{name}: status {server.process.poll()}: {server.log()[-2000:]}")
        serving.wait_until(lambda: serving.completion(server.grpc)[1] == "OK", "a completion")
        self.assert_serving(server)

    def test_the_clock_jumps(self):
        """A day ahead and a day back: sessions in memory stay, calls and streams go on, deadlines hold."""
        faults = Faults(self.folder / "none", self.folder / "control")
        server = self.server({"session-ttl": "1h"}, environment=faults.environment)
        client = self.sessions(server)
        _, session = client.create(durable=False)
        self.assertEqual(client.append(session, "It was a fine morning"), "OK")
        beside = self.beside(server)
        for offset in (DAY + 3600, -DAY, 0):
            faults.move_clock(offset)
            time.sleep(1.2)  # sessions are looked through every second
            self.assertEqual(client.lost(), [], f"the clock is {offset} s off")
            connection = http2.Connection(server.grpc)
            call = connection.call("Complete", [("grpc-timeout", "20S")])
            call.send(messages.complete_request("It was", 4), end=True)
            self.assertEqual(call.wait(), "OK")
            late = connection.call("Complete", [("grpc-timeout", "200m")])
            late.send(messages.complete_request("It was", 100000), end=True)
            self.assertEqual(late.wait(10), "DEADLINE_EXCEEDED")
            connection.close()
        self.assert_serving(server)
        self.assert_unharmed(beside)

    def test_a_timeout_of_11_000_years(self):
        server = self.server()
        connection = http2.Connection(server.grpc)
        self.addCleanup(connection.close)
        for timeout in ("99999999H", "99999999M", "99999999S"):
            call = connection.call("Complete", [("grpc-timeout", timeout)])
            call.send(messages.complete_request("It was", 4), end=True)
            self.assertEqual(call.wait(), "OK", timeout)
        self.assert_serving(server)

    def test_a_log_that_is_not_read(self):
        """stderr is a pipe whose reader has stalled: calls are answered, lines are dropped and counted."""
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        server = self.server({"log-format": "json"}, stderr=writer)
        os.close(writer)
        beside = self.beside(server)
        connection = http2.Connection(server.grpc)
        self.addCleanup(connection.close)
        # Long lines: more than the buffer of the log and the pipe hold together.
        metadata = [("x-request-id", "r" * 120), ("x-tenant-id", "t" * 60)]
        for _ in range(1200 if case.FULL else 400):
            calls = [connection.call("Tokenize", metadata) for _ in range(10)]
            for call in calls:
                call.send(messages.field(1, "It was late"), end=True)
            self.assertEqual({call.wait() for call in calls}, {"OK"})
        self.assert_unharmed(beside)
        self.assertEqual(server.serving(), "SERVING")
        self.assertGreater(server.metrics()["polysketch_log_lines_dropped_total"], 0)


if __name__ == "__main__":
    unittest.main()
