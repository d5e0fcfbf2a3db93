"""What the completion streams of both clients share: the calls that one completion is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import grpc

from polysketch._assembly import Assembly
from polysketch._replicas import Replica, Replicas
from polysketch._requests import CompletionOptions, open_completion
from polysketch.errors import RpcError, from_grpc, make_error
from polysketch.retry import Attempts, Deadline, Retry
from polysketch.types import Choice, Chunk, Completion
from polysketch.v1 import polysketch_pb2 as pb


@dataclasses.dataclass
class Job:
    """A completion to run. home: the replica of its session. finished: called with the last message and the replica that
    sent it."""

    request: pb.CompleteRequest
    options: CompletionOptions
    state: bytes | None = None
    home: Replica | None = None
    finished: Callable[[pb.Finish, Replica], None] = lambda finish, replica: None


class StreamState:
    """A completion under way. The properties hold what has arrived so far."""

    def __init__(self, job: Job, replicas: Replicas, retry: Retry | None, metadata: tuple[tuple[str, str], ...],
                 timeout: float | None) -> None:
        self._job = job
        self._replicas = replicas
        self._retry = retry
        self._metadata = metadata
        own = job.options.get("timeout")
        self._deadline = Deadline(timeout if own is None else own)
        self._request = job.request
        self._state = job.state
        self._assembly = Assembly(job.options.get("on_progress"), max(job.request.n, job.request.best_of) > 1)
        self._attempts = Attempts(retry, replicas, self._deadline, home=job.home)
        self._call: Any = None
        self._done = False  # nothing more will be read

    @property
    def text(self) -> str:
        """Text of choice 0."""
        return self._assembly.choice(0).text

    @property
    def tokens(self) -> list[int]:
        """Tokens of choice 0."""
        return self._assembly.choice(0).tokens

    @property
    def choices(self) -> list[Choice]:
        return self._assembly.result().choices

    def _open(self) -> None:
        """Starts a call on the replica whose turn it is."""
        self._call = open_completion(self._attempts.replica.stub, self._request, self._state,
                                     timeout=self._deadline.left(), metadata=self._metadata)

    def _cancel(self) -> None:
        self._done = True
        if self._call is not None:
            self._call.cancel()

    def _failed(self, error: Any) -> float:
        """Seconds to wait before the next call, after an error of gRPC's. Raises the error if there is none."""
        return self._refused(from_grpc(error, self._attempts.replica.target))

    def _refused(self, error: RpcError) -> float:
        # A repeated call would send again what was received.
        if self._assembly.received:
            self._done = True
            raise error
        try:
            return self._attempts.failed(error)
        except RpcError:
            self._done = True
            raise

    def _ended(self) -> RpcError:
        """The error of a call that ended without an error and without a last message."""
        self._done = True
        return make_error(grpc.StatusCode.INTERNAL, "expected a finish message at the end of the stream, found none",
                          target=self._attempts.replica.target)

    def _accept(self, response: pb.CompleteResponse) -> tuple[Chunk | None, bool]:
        """The chunk of a message, and whether another call is to be started."""
        chunk = self._assembly.add(response)
        if not self._assembly.migrated or self._retry is None:
            if self._assembly.finish is not None:
                self._done = True
                self._job.finished(self._assembly.finish, self._attempts.replica)
            return chunk, False
        token, return_state = self._assembly.resume(), self._request.return_state
        self._request, self._state = pb.CompleteRequest(resume_token=token), None
        if return_state:
            self._request.return_state = True
        self._attempts.replica.failed()
        # The token is in the store of all replicas; a session follows its completion there.
        self._attempts = Attempts(self._retry, self._replicas, self._deadline, patience=self._retry.resume_timeout)
        return (Chunk(chunk.text) if chunk is not None and chunk.text else None), True

    def _result(self) -> Completion:
        if self._assembly.finish is None:
            raise make_error(grpc.StatusCode.CANCELLED, "the completion was closed before its end")
        return self._assembly.result()
