"""Pieces of calls that both clients share: readers of long calls, health, lists."""

from __future__ import annotations

import contextlib
from array import array
from typing import Any

import grpc

from polysketch import _wire_pb2
from polysketch._config import Address
from polysketch._requests import ProgressCallback
from polysketch.errors import NotFoundError, RpcError, UnavailableError, make_error
from polysketch.types import FarMass, Score, SessionInfo, Snapshot, Timings, copy_fields
from polysketch.v1 import polysketch_pb2 as pb

HEALTH_METHOD = "/grpc.health.v1.Health/Check"
HEALTH_REQUEST = _wire_pb2.HealthCheckRequest()
HEALTH_SERIALIZERS: dict[str, Any] = {
    "request_serializer": _wire_pb2.HealthCheckRequest.SerializeToString,
    "response_deserializer": _wire_pb2.HealthCheckResponse.FromString,
}


def health_name(response: Any) -> str:
    return str(_wire_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


def health_of_error(error: RpcError) -> str:
    """UNAVAILABLE if no replica answered in time. Raises other errors."""
    if error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return "UNAVAILABLE"
    raise error


def unresolved(name: Address, error: OSError) -> UnavailableError:
    return UnavailableError(grpc.StatusCode.UNAVAILABLE, f"{name.host}: the host name does not resolve: {error.strerror}",
                            target=name.target)


def no_session(session: str) -> NotFoundError:
    return NotFoundError(grpc.StatusCode.NOT_FOUND, f"session: there is no session {session}")


def read_status(call: Any) -> None:
    """Reads the status after the last message, so that the call ends and is not cancelled."""
    with contextlib.suppress(grpc.RpcError):
        for _ in call:
            pass


def session_list(response: pb.ListSessionsResponse) -> list[SessionInfo]:
    return [copy_fields(SessionInfo, one) for one in response.sessions]


def snapshot_list(response: pb.ListSessionsResponse) -> list[Snapshot]:
    return [copy_fields(Snapshot, one) for one in response.snapshots]


class _Reader:
    """Reads the responses of a long call. start is called before each try."""

    def __init__(self, on_progress: ProgressCallback | None) -> None:
        self._on_progress = on_progress

    def start(self) -> None:
        self._last: Any = None

    def add(self, response: Any) -> None:
        if response.WhichOneof("event") == "progress":
            if self._on_progress is not None:
                self._on_progress(response.progress.processed, response.progress.total)
        else:
            self._last = response

    def last(self) -> Any:
        if self._last is None:
            raise make_error(grpc.StatusCode.INTERNAL, "expected a last message at the end of the stream, found none")
        return self._last


class ScoreReader(_Reader):
    def __init__(self, logprobs: bool, on_progress: ProgressCallback | None) -> None:
        super().__init__(on_progress)
        self._wanted = logprobs

    def start(self) -> None:
        super().start()
        self._logprobs = array("f")
        self._greedy: list[bool] = []

    def add(self, response: pb.ScoreResponse) -> None:
        if response.WhichOneof("event") != "logprobs":
            super().add(response)
        elif self._wanted:
            self._logprobs.extend(response.logprobs.logprobs)
            self._greedy.extend(response.logprobs.greedy)

    def result(self) -> Score:
        finish = self.last().finish
        return Score(finish.tokens, self._logprobs.tolist(), finish.logprob_sum, finish.perplexity,
                     copy_fields(Timings, finish.timings), self._greedy,
                     [FarMass(one.layer, one.first, one.queries, list(one.shares)) for one in finish.far_mass])


class AppendReader(_Reader):
    def result(self) -> pb.AppendResponse:
        response: pb.AppendResponse = self.last()
        return response
