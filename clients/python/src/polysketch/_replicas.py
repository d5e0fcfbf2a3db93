"""The replicas of a client: where they are, and which one is called next."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from polysketch._config import Address

# Seconds for which calls prefer other replicas after one was unavailable.
AVOID_SECONDS = 5.0

Resolved = list[tuple[Any, ...]]  # of getaddrinfo


class Replica:
    """One server. `channel`, `stub` and `health` are made at the first use, by the client whose replica this is."""

    def __init__(self, address: Address, connect: Callable[[Address], tuple[Any, Any]]) -> None:
        self.address = address
        self._connect = connect
        self._connection: tuple[Any, Any] | None = None
        self._lock = threading.Lock()
        self._avoid_until = 0.0
        self._busy_until = 0.0

    @property
    def target(self) -> str:
        return self.address.target

    def _connected(self) -> tuple[Any, Any]:
        with self._lock:
            if self._connection is None:
                self._connection = self._connect(self.address)
            return self._connection

    @property
    def channel(self) -> Any:
        return self._connected()[0]

    @property
    def stub(self) -> Any:
        return self._connected()[1]

    def take_channel(self) -> Any:
        """The channel, to be closed; None if there is none. The next use opens another one."""
        with self._lock:
            connection, self._connection = self._connection, None
            return connection[0] if connection else None

    def failed(self) -> None:
        self._avoid_until = time.monotonic() + AVOID_SECONDS

    def avoided(self) -> bool:
        return time.monotonic() < self._avoid_until

    def busy(self, seconds: float) -> None:
        self._busy_until = time.monotonic() + seconds

    def busy_for(self) -> float:
        """Seconds for which the replica asked not to be called."""
        return max(0.0, self._busy_until - time.monotonic())


class Replicas:
    """The replicas of a list of addresses. Thread-safe.

    stale: whether names of `dns:///` addresses are to be resolved (again) before the next call.
    """

    def __init__(self, addresses: Sequence[Address], connect: Callable[[Address], tuple[Any, Any]]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._turn = 0
        self._fixed = [Replica(address, connect) for address in addresses if not address.resolve]
        self.names = [address for address in addresses if address.resolve]
        self._named: dict[str, Replica] = {}
        self.stale = bool(self.names)

    def all(self) -> list[Replica]:
        with self._lock:
            return [*self._fixed, *self._named.values()]

    def choose(self) -> Replica:
        """The next replica in turn, for a new call: one that was neither unavailable lately nor busy, if there is one."""
        return self._in_turn(self.all())

    def choose_other(self, tried: Sequence[Replica]) -> Replica | None:
        """As choose, for a call that `tried` have failed; None if all others ask not to be called now."""
        left = [replica for replica in self.all() if replica not in tried and replica.busy_for() == 0]
        return self._in_turn(left) if left else None

    def _in_turn(self, left: list[Replica]) -> Replica:
        left = [replica for replica in left if not replica.avoided() and replica.busy_for() == 0] or left
        with self._lock:
            self._turn += 1
            return left[self._turn % len(left)]

    def resolved(self, answers: Iterable[tuple[Address, Resolved]]) -> list[Any]:
        """Takes the addresses of the names. Returns the channels of replicas that have left, to be closed."""
        found: dict[str, Address] = {}
        for name, answer in answers:
            for family, _, _, _, where in answer:
                host = f"[{where[0]}]" if family == socket.AF_INET6 else where[0]
                found[f"{host}:{name.port}"] = name.at(f"{host}:{name.port}")
        if not found:
            return []  # the name server has no answer now: the former addresses may work
        with self._lock:
            gone = [replica for target, replica in self._named.items() if target not in found]
            self._named = {target: self._named.get(target) or Replica(address, self._connect)
                           for target, address in found.items()}
            self.stale = False
        return [channel for channel in (replica.take_channel() for replica in gone) if channel is not None]
