"""State stores with faults that come and go, for soak.py: a folder (faults.c) or Redis (redis_proxy.py)."""

import errno
import os
import pathlib
import random
import socket
import threading
import time

from faults import Faults
from redis_proxy import Redis, RedisProxy

SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 20.0  # seconds between two faults
LONGEST_FAULT = 4.0  # seconds
AFTERWARDS = 5.0  # seconds in which calls may still fail: a store that broke is asked again within a moment


class FolderStore:
    FAULTS = {
        "full": ("write", {"error": errno.ENOSPC}),
        "writes fail now and then": ("write", {"error": errno.EIO, "every": 3}),
        "short writes": ("write", {"shorten": 1000}),
        "syncs fail": ("fsync", {"error": errno.EIO, "every": 2}),
        "slow syncs": ("fsync", {"delay_ms": 100}),
        "renames fail": ("rename", {"error": errno.EROFS}),
        "no descriptors": ("open", {"error": errno.EMFILE, "every": 2}),
        "lists fail": ("readdir", {"error": errno.EIO}),
        "reads fail": ("pread", {"error": errno.EIO, "every": 2}),
        "short reads": ("pread", {"shorten": 1000}),
        "nothing is deleted": ("unlink", {"error": errno.EROFS}),
    }

    def __init__(self, folder):
        self._path = folder / "states"
        self._path.mkdir()
        self._faults, self._call = Faults(self._path, folder / "faults"), None
        self.url, self.environment = f"dir:{self._path}", self._faults.environment
        self.happened = 0

    def entries(self):
        return sum(len(files) for _, _, files in os.walk(self._path))

    def connections(self):
        return 0

    def begin(self, kind):
        self._call, fault = self.FAULTS[kind]
        self._faults.set(self._call, **fault)

    def end(self):
        if self._call is not None:
            self.happened += self._faults.happened(self._call)
        self._call = None
        self._faults.clear()

    def stop(self):
        pass


class RedisStore:
    FAULTS = {"slow": 0.2, "hang": 0, "refuse": 0, "break": 0}  # seconds of a delay

    def __init__(self, folder):
        self._redis = Redis(folder, keep=False)
        self._proxy = RedisProxy(self._redis.port)
        self.url, self.environment = f"redis://127.0.0.1:{self._proxy.port}", {}

    def entries(self):
        with socket.create_connection(("127.0.0.1", self._redis.port), 10) as one:
            one.sendall(b"DBSIZE\r\n")
            return int(one.recv(64).strip(b":\r\n"))

    def connections(self):
        """That the server keeps to Redis: as many as it needed at once since the last error."""
        port = f":{self._proxy.port:04X}"
        lines = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(fields[2].endswith(port) and fields[3] in ("01", "08") for fields in lines)  # established, close-wait

    @property
    def happened(self):
        return self._proxy.replies

    def begin(self, kind):
        self._proxy.mode, self._proxy.delay = kind, self.FAULTS[kind]

    def end(self):
        self._proxy.mode = "pass"

    def stop(self):
        self._proxy.stop()
        self._redis.stop()


class FaultTimes:
    """Faults of a store, one after the other with pauses, while it runs."""

    def __init__(self, store, seed):
        self._store, self._random = store, random.Random(seed)
        self._kinds = []
        self._until = 0.0  # on the monotonic clock; infinite during a fault
        self._stopped = threading.Event()
        self._thread = None

    def start(self):
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self):
        if self._thread is not None:
            self._stopped.set()
            self._thread.join()
            self._thread = None

    def excuse(self, began):
        """Whether a call of the store that began then and has ended now may have met a fault."""
        return self._until + AFTERWARDS > began

    def _run(self):
        while not self._stopped.wait(min(self._random.expovariate(1 / 6) + SHORTEST_PAUSE, LONGEST_PAUSE)):
            if not self._kinds:  # each kind once before one comes again
                self._kinds = self._random.sample(list(self._store.FAULTS), len(self._store.FAULTS))
            self._until = float("inf")
            self._store.begin(self._kinds.pop())
            self._stopped.wait(self._random.uniform(0.5, LONGEST_FAULT))
            self._store.end()
            self._until = time.monotonic()
