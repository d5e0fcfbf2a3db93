"""What the tests of deploy/ share: paths, and the real server and Prometheus as child processes."""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BIN = pathlib.Path(os.environ.get("POLYSKETCH_BIN_DIR", ROOT / "build/cpu/bin"))
FULL = os.environ.get("POLYSKETCH_TEST_FULL") == "1"
PATIENCE = 120.0  # seconds before something counts as hung; no test measures time against it


def wait_until(condition, what, patience=PATIENCE):
    end = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {patience:.0f} s for {what}")
        time.sleep(0.05)
    return value


def http_get(url, timeout=PATIENCE):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read().decode()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class DeployTest(unittest.TestCase):
    """Runs in a temporary folder, self.dir; child processes do not outlive the test."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def start(self, name, command, **options):
        log = open(self.dir / f"{name}.log", "wb")
        self.addCleanup(log.close)
        process = subprocess.Popen(command, stderr=log, **options)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def start_server(self, *flags, environment=None):
        """The server with models/demo, unless the environment names another, and its ready line."""
        environment = {"POLYSKETCH_MODEL": str(ROOT / "models/demo")} | (environment or {})
        process = self.start(
            "server",
            [BIN / "polysketch-server", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]
            + ["--http-listen=", *flags],
            stdout=subprocess.PIPE,
            env=os.environ | environment,
        )
        line = process.stdout.readline()
        self.addCleanup(process.stdout.close)
        self.assertTrue(line, (self.dir / "server.log").read_text())
        return process, json.loads(line)

    def start_prometheus(self, metrics_address):
        """Prometheus with our rules, scraping the server every 200 ms; the address of its API."""
        program = ROOT / ".deps/bin/prometheus"
        self.assertTrue(program.exists(), "scripts/setup brings Prometheus")
        shutil.copytree(DEPLOY / "prometheus/rules", self.dir / "rules")
        for path in (self.dir / "rules").iterdir():
            text = path.read_text().replace("interval: 15s", "interval: 1s")
            path.write_text(text.replace("interval: 30s", "interval: 1s"))
        (self.dir / "prometheus.yml").write_text(
            "global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 1s}\n"
            "rule_files: [rules/*.yml]\n"
            "scrape_configs:\n"
            f"  - {{job_name: polysketch, static_configs: [{{targets: ['{metrics_address}']}}]}}\n"
        )
        address = f"127.0.0.1:{free_port()}"
        self.start(
            "prometheus",
            [program, f"--config.file={self.dir}/prometheus.yml", f"--web.listen-address={address}"]
            + [f"--storage.tsdb.path={self.dir}/tsdb", "--log.level=warn"],
        )

        def ready():
            with contextlib.suppress(OSError):
                return http_get(f"http://{address}/-/ready")

        wait_until(ready, "Prometheus")
        return address


def query(prometheus, expression):
    """The samples of an expression now, or a message that begins with "error: "."""
    arguments = urllib.parse.urlencode({"query": expression})
    try:
        answer = json.loads(http_get(f"http://{prometheus}/api/v1/query?{arguments}"))
    except urllib.error.HTTPError as error:
        return f"error: {error.read().decode()}"
    data = answer["data"]
    values = data["result"] if data["resultType"] == "vector" else [{"value": data["result"]}]
    return [float(sample["value"][1]) for sample in values]
