"""A server process of the build and its clients, for the scripts of this folder."""

import argparse
import ctypes
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
OWN_CPU = 'polysketch_cpu_seconds_total{part="server"}'
_PR_SET_PDEATHSIG, _LIBC = 1, ctypes.CDLL(None)
# A decode step for each token: the number of accepted drafts depends on the text.
GREEDY = ["--ignore-eos", "--temperature=0", "--draft-tokens=0"]


def parser(description, model=None):
    """An argument parser with the options of every script. `model`: the default of --model; None: the option is required."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    result.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/cpu/bin", help="folder of the programs")
    result.add_argument("--model", default=model, required=model is None, help="model folder")
    result.add_argument("--server-flag", action="append", default=[], help="flag of polysketch-server; repeatable")
    return result


def random_ids(tokens, model, seed):
    """Token ids of the vocabulary of a model folder, as --prompt-tokens reads them."""
    vocabulary = json.loads((pathlib.Path(model) / "config.json").read_text())["vocab_size"]
    rng = random.Random(seed)
    return " ".join(str(rng.randrange(2, vocabulary)) for _ in range(tokens))


def environment(programs):
    """The environment of the programs of a folder, which may have libraries in lib (scripts/gpu-check pack server). The
    interpreter itself must not load those."""
    folders = [str(pathlib.Path(programs).resolve() / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    return os.environ | {"LD_LIBRARY_PATH": ":".join(filter(None, folders))}


def turns(kinds, number):
    """The order of `kinds` in a round: neither is always the first."""
    return sorted(kinds, reverse=number % 2 == 1)


def _end_with_parent():
    """In a child process: ends it when this script is killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Server:
    """polysketch-server on free loopback ports, from the ready line to the end of the with statement."""

    def __init__(self, options, *flags):
        self.programs = options.bin
        self._environment = environment(options.bin)
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [options.bin / "polysketch-server", f"--model={options.model}", "--listen=127.0.0.1:0",
             "--metrics-listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--log-level=warning", *flags, *options.server_flag],
            stdout=subprocess.PIPE, stderr=self._log, text=True, env=self._environment, preexec_fn=_end_with_parent)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the server ended with {self._process.wait()}:\n{self.log()}")
        ready = json.loads(line)
        self.address, self.http, self._metrics = ready["listen"], ready["http"], ready["metrics"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()

    def log(self):
        """What it has written to standard error."""
        self._log.seek(0)
        return self._log.read()

    def drain(self):
        """Sends SIGTERM; returns the exit status and the seconds until the end."""
        start = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(), time.monotonic() - start

    def command(self, *arguments, program="polysketch"):
        """The command line of a client of this server."""
        return [str(self.programs / program), f"--server={self.address}", *map(str, arguments)]

    def call(self, *arguments, stdin=None):
        """The JSON object that a command of the client prints."""
        done = subprocess.run(self.command(*arguments, "--json"), input=stdin, stdout=subprocess.PIPE, text=True, check=True,
                              env=self._environment)
        return json.loads(done.stdout)

    def timed(self, *arguments, stdin=None):
        """The result of call, and the seconds that it took."""
        start = time.monotonic()
        return self.call(*arguments, stdin=stdin), time.monotonic() - start

    def load(self, *arguments, check=False):
        """What polysketch-loadgen reports, and the seconds of CPU of the server's own threads: all but the model's."""
        before = self.metric(OWN_CPU)
        load = self.start_load(*arguments)
        result = self.load_result(load)
        if check and load.returncode != 0:
            raise SystemExit(f"the load generator ended with {load.returncode}: {result['report']}\n{self.log()}")
        return result, self.metric(OWN_CPU) - before

    def start_load(self, *arguments):
        """A load that runs beside others: its process."""
        command = self.command("--json", "--quiet", *arguments, program="polysketch-loadgen")
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self._environment)

    def load_result(self, load):
        """Waits for the end of a load, and returns what the load generator reports."""
        output, _ = load.communicate()
        if not output:
            raise SystemExit(f"the load generator ended with {load.returncode} and no report; the server's log:\n{self.log()}")
        return json.loads(output)

    def metric(self, name):
        """The value of a series of /metrics; `name` includes its labels."""
        with urllib.request.urlopen(f"http://{self._metrics}/metrics", timeout=30) as answer:
            page = answer.read().decode()
        return float(re.search(rf"^{re.escape(name)} (\S+)$", page, flags=re.MULTILINE)[1])

    def resident_mib(self):
        status = pathlib.Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


class Stream(threading.Thread):
    """One output without an end; the times at which its tokens arrived. A model with a context limit ends it after `tokens`."""

    def __init__(self, server, prompt, tokens=1000000):
        super().__init__(daemon=True)
        command = server.command("complete", f"--prompt-tokens={prompt}", "--ids", f"--max-tokens={tokens}", "--ignore-eos",
                                 "--draft-tokens=0")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0, env=environment(server.programs))
        self.times = []
        self.start()

    def run(self):
        while data := self.process.stdout.read(4096):
            now = time.monotonic()
            # Tokens that arrive together were one message: the gap belongs to it.
            self.times += [now] * (1 if b" " in data else 0)

    def gaps(self, begin, end):
        times = [t for t in self.times if begin <= t <= end]
        return [1000 * (b - a) for a, b in zip(times, times[1:])]


def gap_summary(gaps):
    """Median, 99th percentile and largest of times in milliseconds."""
    gaps = sorted(gaps)
    return f"{gaps[len(gaps) // 2]:.1f}, {gaps[len(gaps) * 99 // 100]:.1f}, {gaps[-1]:.1f} ms"
