"""The server under test, for environments without OpenAI's client too."""

import http.client
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN = pathlib.Path(os.environ.get("POLYSKETCH_BIN_DIR", ROOT / "build/cpu/bin"))
# Writes tools in the form of Hermes and Qwen.
TOOL_TEMPLATE = ROOT / "tests/server/chat/templates/hermes_tools.jinja"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    def __init__(self, *flags, model=ROOT / "models/demo"):
        self.process = subprocess.Popen(
            [BIN / "polysketch-server", "--model", model, "--listen", "127.0.0.1:0"]
            + ["--metrics-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--log-level", "error", *flags],
            stdout=subprocess.PIPE,
        )
        ready = json.loads(self.process.stdout.readline())
        self.http, self.grpc, self.metrics_address = ready["http"], ready["listen"], ready["metrics"]
        self.url = f"http://{self.http}/v1"

    def stop(self):
        self.process.terminate()
        status = self.process.wait(60)
        self.process.stdout.close()
        return status

    def metric(self, *names):
        """The sum of metrics, of one reading."""
        connection = http.client.HTTPConnection(self.metrics_address, timeout=60)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        starts = tuple(name + end for name in names for end in " {")
        return sum(float(line.split()[-1]) for line in lines if line.startswith(starts))

    def becomes_idle(self):
        # One reading decides: the numbers are those of the engine's last step, so that a second one may differ.
        states = [f"polysketch_num_requests_{state}" for state in ("running", "waiting", "preempted")]
        end = time.monotonic() + 60
        while self.metric(*states):
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def command_line(self, *arguments):
        line = [BIN / "polysketch", "--server", self.grpc, "complete", "--json", *arguments]
        return json.loads(subprocess.run(line, check=True, capture_output=True).stdout)


class Proxy:
    """A program of another project before the server."""

    def __init__(self, command, folder, environment=None):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, cwd=folder, env=environment)

    def wait(self, answers):
        """Returns when `answers()` is true: it may raise OSError before. Fails with the output of the program."""
        end = time.monotonic() + 600
        while self.process.poll() is None and time.monotonic() < end:
            try:
                if answers():
                    return
            except OSError:
                pass
            time.sleep(0.1)
        self.log.seek(0)
        said = self.log.read()
        self.stop()
        raise AssertionError(said)

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        self.log.close()
