"""polysketch-server as a child: started with limits, watched, and asked how it is."""

import atexit
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

import http2
import messages

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("POLYSKETCH_BIN_DIR", ROOT / "build/cpu/bin"))
MIB = 1 << 20
MAX_TOKENS = 100_000
PATIENCE = 60.0  # seconds before something counts as hung


def temporary_folder(name):
    """A folder that is removed when the program ends, if not before."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def wait_until(condition, what, patience=PATIENCE):
    end = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {patience:.0f} s for {what}")
        time.sleep(0.02)
    return value


def address_of(text):
    """(host, port) of HOST:PORT, or the path of unix:PATH."""
    if text.startswith("unix:"):
        return text.removeprefix("unix:")
    host, port = text.rsplit(":", 1)
    return host, int(port)


def knows(binary, flag):
    """Whether a build has the flag."""
    return f"--{flag} " in subprocess.run([binary, "--help"], capture_output=True, text=True, check=True).stdout


def children(pid):
    try:
        lists = [path.read_text() for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # the process, or a thread, has ended
        return []
    return [int(child) for text in lists for child in text.split()]


def own_mib(pid):
    """The private memory of a process; 0 for one that has ended."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:")) / 1024


class Server:
    """A server with models/demo on free ports. `flags` are NAME: VALUE; one that the binary does not know is left out,
    so that older builds can be compared. `kill_above`: resident MiB at which the server is killed, for builds that hold
    whatever they are sent. `descriptors`, `address_space`: limits of the process."""

    def __init__(self, flags=None, binary=None, log=None, environment=None, kill_above=None, descriptors=None,
                 address_space=None, stderr=None):
        binary = pathlib.Path(binary or BIN / "polysketch-server")
        known = subprocess.run([binary, "--help"], capture_output=True, text=True, check=True).stdout
        every = {"model": ROOT / "models/demo", "listen": "127.0.0.1:0", "metrics-listen": "127.0.0.1:0",
                 "http-listen": "127.0.0.1:0", **(flags or {})}
        command = [binary, *(f"--{name}={value}" for name, value in every.items() if f"--{name} " in known)]
        self.log_path = log
        self._log = open(log, "ab") if log else None

        def limit():
            if descriptors:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
            if address_space:
                resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))

        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=limit,
                                        stderr=stderr or self._log or subprocess.DEVNULL,
                                        env={**os.environ, **(environment or {})})
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the server did not start: status {self.process.wait()}, {self.log()[-2000:]}")
        self.ready = json.loads(line)
        self.pid = self.process.pid
        self.killed_at = None
        if kill_above:
            threading.Thread(target=self._watch, args=(kill_above,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop()

    @property
    def grpc(self):
        return address_of(self.ready["listen"])

    @property
    def http(self):
        return address_of(self.ready["http"])

    @property
    def metrics_address(self):
        return address_of(self.ready["metrics"])

    def alive(self):
        return self.process.poll() is None

    def stop(self):
        if self.alive():
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        if self._log:
            self._log.close()

    def log(self):
        return pathlib.Path(self.log_path).read_text(errors="replace") if self.log_path else ""

    # --- memory ---

    def _status_mib(self, name):
        try:
            text = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return 0.0
        return float(text.split(name + ":")[1].split()[0]) / 1024 if name + ":" in text else 0.0

    def resident_mib(self):
        return self._status_mib("VmRSS")

    def peak_mib(self):
        """Of the resident memory, since reset_peak."""
        return self.killed_at or self._status_mib("VmHWM")

    def grammars_mib(self):
        """The memory of the processes of grammars, without what they share with their parent."""
        return sum(own_mib(grammar) for host in children(self.pid) for grammar in children(host))

    def reset_peak(self):
        pathlib.Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def _watch(self, most):
        while self.alive():
            now = self.resident_mib()
            if now > most:
                self.killed_at = now
                self.process.kill()
                return
            time.sleep(0.005)

    # --- health ---

    def metrics(self, timeout=10):
        """Name with labels -> value."""
        page = urllib.request.urlopen(f"http://{self.ready['metrics']}/metrics", timeout=timeout).read().decode()
        lines = (line.rsplit(" ", 1) for line in page.splitlines() if line and line[0] != "#")
        return {name: float(value) for name, value in lines}

    def serving(self, timeout=10, source=None, tls=None):
        """What a new client is told: SERVING, or what stood in its way."""
        connection = None
        try:
            connection = http2.Connection(self.grpc, source=source, tls=tls, timeout=timeout)
            status, response, text = connection.unary("/grpc.health.v1.Health/Check", timeout=timeout)
            if status != "OK":
                return f"{status} {text}"
            return "SERVING" if messages.parse(response).get(1) == [1] else "NOT_SERVING"
        except (OSError, http2.Closed, TimeoutError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            if connection is not None:
                connection.close()

    def healthz(self, timeout=10):
        try:
            return urllib.request.urlopen(f"http://{self.ready['http']}/healthz", timeout=timeout).status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError as error:
            return str(error)


def completion(address, prompt="It was a fine morning in May, and", max_tokens=16, session="", tenant="neighbour", timeout=30,
               tls=None):
    """The tokens of a seeded completion and the status of the call."""
    connection = http2.Connection(address, tls=tls)
    try:
        call = connection.call("Complete", [("x-tenant-id", tenant)])
        call.send(messages.complete_request(prompt, max_tokens, session=session), end=True)
        tokens = []
        while (got := call.receive(timeout)) is not None:
            tokens += messages.delta_tokens(got[1])
        return tokens, call.status
    finally:
        connection.close()


def completion_until(ended, address, prompt, tls=None):
    """A completion without an end that is read until the event `ended`, then cancelled."""
    connection = http2.Connection(address, tls=tls)
    try:
        call = connection.call("Complete", [])
        call.send(messages.complete_request(prompt, MAX_TOKENS), end=True)
        while not ended.is_set() and call.receive(PATIENCE) is not None:
            pass
    finally:
        connection.close()
