"""The server under test, for environments without OpenAI's client too."""

import http.client
import json
import os
import pathlib
import socket
import subprocess
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
        self.http, self.grpc, self.metrics = ready["http"], ready["listen"], ready["metrics"]
        self.url = f"http://{self.http}/v1"

    def stop(self):
        self.process.terminate()
        status = self.process.wait(60)
        self.process.stdout.close()
        return status

    def metric(self, name):
        connection = http.client.HTTPConnection(self.metrics, timeout=60)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return sum(float(line.split()[-1]) for line in lines if line.startswith((name + " ", name + "{")))

    def becomes_idle(self):
        end = time.monotonic() + 60
        while self.metric("polysketch_num_requests_running") and time.monotonic() < end:
            time.sleep(0.02)
        return not self.metric("polysketch_num_requests_running")

    def command_line(self, *arguments):
        line = [BIN / "polysketch", "--server", self.grpc, "complete", "--json", *arguments]
        return json.loads(subprocess.run(line, check=True, capture_output=True).stdout)
