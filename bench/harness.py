"""A server process of the build and its clients, for the scripts of this folder."""

import argparse
import json
import pathlib
import random
import re
import subprocess
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
OWN_CPU = 'polysketch_cpu_seconds_total{part="server"}'
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


def turns(kinds, number):
    """The order of `kinds` in a round: neither is always the first."""
    return sorted(kinds, reverse=number % 2 == 1)


class Server:
    """polysketch-server on free loopback ports, from the ready line to the end of the with statement."""

    def __init__(self, options, *flags):
        self._bin = options.bin
        self._process = subprocess.Popen(
            [options.bin / "polysketch-server", f"--model={options.model}", "--listen=127.0.0.1:0",
             "--metrics-listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--log-level=warning", *flags, *options.server_flag],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        ready = json.loads(self._process.stdout.readline())
        self.address, self.http, self._metrics = ready["listen"], ready["http"], ready["metrics"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()

    def command(self, *arguments, program="polysketch"):
        """The command line of a client of this server."""
        return [str(self._bin / program), f"--server={self.address}", *map(str, arguments)]

    def call(self, *arguments, stdin=None):
        """The JSON object that a command of the client prints."""
        done = subprocess.run(self.command(*arguments, "--json"), input=stdin, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout)

    def timed(self, *arguments, stdin=None):
        """The result of call, and the seconds that it took."""
        start = time.monotonic()
        return self.call(*arguments, stdin=stdin), time.monotonic() - start

    def load(self, *arguments, check=False):
        """What polysketch-loadgen reports, and the seconds of CPU of the server's own threads: all but the model's."""
        before = self.metric(OWN_CPU)
        command = self.command("--json", "--quiet", *arguments, program="polysketch-loadgen")
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=check)
        return json.loads(done.stdout), self.metric(OWN_CPU) - before

    def metric(self, name):
        """The value of a series of /metrics; `name` includes its labels."""
        with urllib.request.urlopen(f"http://{self._metrics}/metrics", timeout=30) as answer:
            page = answer.read().decode()
        return float(re.search(rf"^{re.escape(name)} (\S+)$", page, flags=re.MULTILINE)[1])

    def resident_mib(self):
        status = pathlib.Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


class Stream(threading.Thread):
    """One endless output; the times at which its tokens arrived."""

    def __init__(self, server, prompt):
        super().__init__(daemon=True)
        command = server.command("complete", f"--prompt-tokens={prompt}", "--ids", "--max-tokens=1000000", "--ignore-eos",
                                 "--draft-tokens=0")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0)
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
