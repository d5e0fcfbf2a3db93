"""Programs beside the server: the neighbour (neighbour.py), whose tokens are compared with a run of its own, and attackers."""

import json
import pathlib
import subprocess
import sys
import threading
import time

import neighbour
import serving

HERE = pathlib.Path(__file__).resolve().parent
TOKENS = 1000  # of a completion of the neighbour
ATTACKER = "127.0.0.66"  # the address of attackers; the neighbour has 127.0.0.1


class Child:
    """A program of this folder that ends with a line of JSON."""

    def __init__(self, name, *arguments):
        self._process = subprocess.Popen([sys.executable, "-B", HERE / name, *arguments], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)

    def line(self):
        return self._process.stdout.readline().strip()

    def say(self, text):
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def running(self):
        return self._process.poll() is None

    def result(self, timeout):
        """The object of its last line; {} when it was ended because it did not end by itself."""
        watch = threading.Timer(timeout, self._process.kill)
        watch.start()
        self._process.stdin.close()
        lines = self._process.stdout.read().strip().splitlines()
        self._process.wait()
        self._process.stdout.close()
        watch.cancel()
        return json.loads(lines[-1]) if lines and self._process.returncode == 0 else {}


class Reference:
    """The tokens of the neighbour's completion without an attack, computed as far as they are needed."""

    def __init__(self, start_server):
        self._start_server, self._tokens = start_server, []

    def first(self, count):
        if len(self._tokens) < count:
            with self._start_server() as server:
                self._tokens, status = serving.completion(server.grpc, neighbour.PROMPT, max(count, TOKENS))
            assert status == "OK" and len(self._tokens) >= count, f"{status}, {len(self._tokens)} tokens"
        return self._tokens[:count]

    def differences(self, streams):
        """What is wrong with the tokens of the streams of a neighbour: texts."""
        wrong = [] if any(streams) else ["no tokens"]
        for tokens in streams:
            expected = self.first(len(tokens))
            if tokens != expected:
                same = next(at for at, (one, other) in enumerate(zip(tokens, expected)) if one != other)
                wrong.append(f"of {len(tokens)} tokens the first {same} are those of a run without the attack")
        return wrong


REFERENCE = Reference(lambda: serving.Server({"prefix-cache-min-tokens": 0}))


class Beside:
    """A neighbour whose first stream has begun. `target`: the fields of neighbour.py. `endless`: one completion that does not
    end, for attacks in which another would wait for a slot."""

    def __init__(self, target, endless=False):
        self._told = None
        self._child = Child("neighbour.py", json.dumps({**target, "tokens": 1000000 if endless else TOKENS}))
        if self._child.line() != "ready":
            raise AssertionError("the neighbour did not start")
        time.sleep(0.2)

    def start(self):
        """Begins the measurement."""
        self._child.say("start")

    def stop(self):
        """streams, gaps and errors; {} for a neighbour that hangs."""
        if self._told is None:
            self._told = self._child.result(30)
        return self._told
