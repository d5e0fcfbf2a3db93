"""When a call is repeated, and where."""

from __future__ import annotations

import dataclasses
import random
import time

import grpc

from polysketch._replicas import Replica, Replicas
from polysketch.errors import RpcError


@dataclasses.dataclass(frozen=True)
class Retry:
    """How calls are repeated.

    A call is repeated when nothing of its result has been received and a replica is UNAVAILABLE, or is RESOURCE_EXHAUSTED
    and says when to try again, or is ABORTED because another request uses the session. The other replicas are tried first;
    those of the session only if its own is UNAVAILABLE. When each has failed, the client waits: at least as long as the
    server asks, otherwise initial_backoff * multiplier^round seconds, at most max_backoff, less a random part of at most a
    half.

    attempts: rounds through the replicas, 1 or more.
    initial_backoff, max_backoff, multiplier: the wait between rounds, in seconds.
    resume_timeout: seconds in which a completion that a draining server has migrated must find another replica.
    """

    attempts: int = 5
    initial_backoff: float = 0.1
    max_backoff: float = 5.0
    multiplier: float = 2.0
    resume_timeout: float = 60.0

    def __post_init__(self) -> None:
        for name, least in (("attempts", 1), ("initial_backoff", 0), ("max_backoff", 0), ("multiplier", 1),
                            ("resume_timeout", 0)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name}: expected {least} or more, found {getattr(self, name)}")

    def backoff(self, rounds: int) -> float:
        """Seconds to wait after the given number of failed rounds, 1 or more."""
        wait = min(self.max_backoff, self.initial_backoff * self.multiplier ** (rounds - 1))
        return wait * random.uniform(0.5, 1)


class Deadline:
    """The end of a call with all its tries. seconds None: no end."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Seconds until the end, 0 or more; None: no end."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())


class Attempts:
    """The tries of one call. `replica` is the one to call next.

    home: the replica of the session of the call. The others are tried when it is unavailable; that they do not know the
    session is then no result.
    patience: seconds in which rounds are not counted.
    """

    def __init__(self, retry: Retry | None, replicas: Replicas, deadline: Deadline, *, home: Replica | None = None,
                 patience: float = 0) -> None:
        self.deadline = deadline
        self._replica = home
        self._retry = retry
        self._replicas = replicas
        self._home = home
        self._unavailable: RpcError | None = None  # of the home
        self._tried: list[Replica] = []
        self._rounds = 0
        self._patient_until = time.monotonic() + patience

    @property
    def replica(self) -> Replica:
        if self._replica is None:  # host names are resolved by now
            self._replica = self._replicas.choose()
        return self._replica

    def failed(self, error: RpcError) -> float:
        """Chooses the next replica. Returns the seconds to wait first. Raises the error if the call is not repeated."""
        if self._retry is None:
            raise error
        # gRPC ends calls so that arrive while a server shuts down; a call that this client cancels has other words.
        shut_down = error.code is grpc.StatusCode.CANCELLED and error.message == "CANCELLED"
        if error.code is grpc.StatusCode.UNAVAILABLE or shut_down:
            self.replica.failed()
            if self.replica is self._home:
                self._unavailable = error
        elif error.code is grpc.StatusCode.NOT_FOUND and self._unavailable is not None:
            error = self._unavailable
        elif error.code is grpc.StatusCode.RESOURCE_EXHAUSTED and error.retry_after is not None:
            self.replica.busy(error.retry_after)
        elif error.code is grpc.StatusCode.ABORTED and self._home is not None:
            pass  # another request uses the session: it may be one that was cancelled just now
        else:
            raise error
        self._tried.append(self.replica)
        moves = self._home is None or self._unavailable is not None
        other = self._replicas.choose_other(self._tried) if moves else None
        if other is not None:
            self._replica = other
            return 0
        return self._next_round(self._retry, error)

    def _next_round(self, retry: Retry, error: RpcError) -> float:
        self._rounds += 1
        if self._rounds >= retry.attempts and time.monotonic() >= self._patient_until:
            raise error
        self._replicas.stale = bool(self._replicas.names)
        candidates = [self._home] if self._home is not None else self._replicas.all()
        self._replica = min(candidates, key=Replica.busy_for)
        asked = self._replica.busy_for()
        # Clients that were refused together do not return together.
        wait = max(retry.backoff(self._rounds), asked * random.uniform(1, 1.1))
        left = self.deadline.left()
        if left is not None and wait >= left:
            raise error
        self._tried.clear()
        return wait
