"""Exceptions of the client: one class for each gRPC status code that the server returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from polysketch import _wire_pb2

__all__ = [
    "AbortedError", "CancelledError", "DataLossError", "DeadlineExceededError", "FailedPreconditionError",
    "InternalError", "InvalidArgumentError", "NotFoundError", "PermissionDeniedError", "ResourceExhaustedError",
    "RpcError", "UnauthenticatedError", "UnavailableError", "UnimplementedError",
]


class RpcError(Exception):
    """A call that ended with an error status.

    code: the status code, grpc.StatusCode.
    message: what the server, or gRPC, reports.
    reason: what a program can act on, as "QUEUE_FULL"; polysketch.proto lists the reasons. "" for an error that the server
      did not send.
    fields: what is wrong by the path of the field, as {"sampling.top_p": "expected a number in (0, 1], found 1.5"}.
    retry_after: seconds after which the server asks for another try; None if it does not ask.
    target: address of the replica that was called.
    request_id: id of the request in the log of the server; None if it is not known. grpc.aio loses it where a stream fails
      before its first message.
    """

    def __init__(self, code: Any, message: str, *, reason: str = "", fields: dict[str, str] | None = None,
                 retry_after: float | None = None, target: str = "", request_id: str | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.reason = reason
        self.fields = fields or {}
        self.retry_after = retry_after
        self.target = target
        self.request_id = request_id

    def __str__(self) -> str:
        again = "" if self.retry_after is None else f"; again in {self.retry_after:g} s"
        return f"{self.code.name}: {self.message}{again}" + (f" ({self.target})" if self.target else "")


class InvalidArgumentError(RpcError):
    """A field is wrong: "sampling.top_p: expected a number in (0, 1], found 1.5"."""


class FailedPreconditionError(RpcError):
    """The request does not fit the server or the session, as another expected_position."""


class ResourceExhaustedError(RpcError):
    """A limit of the server is reached. retry_after is set for a full queue."""


class UnavailableError(RpcError):
    """No connection, or the server is loading its model or draining."""


class DeadlineExceededError(RpcError):
    """The timeout has passed. The server has stopped the request."""


class AbortedError(RpcError):
    """Another request uses the session, the client read nothing for longer than --stall-deadline, or whether a change of the
    state store was made is unknown (reason OUTCOME_UNKNOWN)."""


class NotFoundError(RpcError):
    """No session, snapshot or migrated completion of the tenant has this id, key or token."""


class DataLossError(RpcError):
    """A stored state is damaged."""


class InternalError(RpcError):
    """The server failed."""


class CancelledError(RpcError):
    """The call was cancelled."""


class UnauthenticatedError(RpcError):
    """The server needs another API key or client certificate."""


class PermissionDeniedError(RpcError):
    """The API key does not allow the call."""


class UnimplementedError(RpcError):
    """The server does not know the call: another version, or no polysketch-server."""


_CLASSES: dict[Any, type[RpcError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPreconditionError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.ABORTED: AbortedError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.DATA_LOSS: DataLossError,
    grpc.StatusCode.INTERNAL: InternalError,
    grpc.StatusCode.CANCELLED: CancelledError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.UNIMPLEMENTED: UnimplementedError,
}


def make_error(code: Any, message: str, **fields: Any) -> RpcError:
    """The exception of a status code."""
    return _CLASSES.get(code, RpcError)(code, message, **fields)


def _find(metadata: Iterable[tuple[str, Any]] | None, key: str) -> Any:
    return next((value for name, value in metadata or () if name == key), None)


def _details(trailing: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The messages of google.rpc in the status details that the client knows, by name."""
    kinds: dict[str, type[Message]] = {
        "ErrorInfo": _wire_pb2.ErrorInfo, "BadRequest": _wire_pb2.BadRequest, "RetryInfo": _wire_pb2.RetryInfo}
    try:
        status = _wire_pb2.Status.FromString(_find(trailing, "grpc-status-details-bin") or b"")
        named = [(detail.type_url.rpartition("/google.rpc.")[2], detail.value) for detail in status.details]
        return {name: kinds[name].FromString(value) for name, value in named if name in kinds}
    except DecodeError:
        return {}  # another program's details


def fields_of(trailing: Iterable[tuple[str, Any]] | None) -> dict[str, Any]:
    """Arguments of RpcError by the trailing metadata. retry_after is that of google.rpc.RetryInfo, or of retry-after-ms."""
    trailing = list(trailing or ())
    details = _details(trailing)
    found: dict[str, Any] = {}
    if info := details.get("ErrorInfo"):
        found["reason"] = info.reason
    if request := details.get("BadRequest"):
        found["fields"] = {violation.field: violation.description for violation in request.field_violations}
    milliseconds = _find(trailing, "retry-after-ms")
    if retry := details.get("RetryInfo"):
        found["retry_after"] = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    elif milliseconds is not None and str(milliseconds).isdecimal():
        found["retry_after"] = int(milliseconds) / 1000
    return found


def from_grpc(error: Any, target: str) -> RpcError:
    """The exception of a grpc.RpcError or grpc.aio.AioRpcError."""
    # A call that never reached a server has no initial metadata to wait for.
    initial = error.initial_metadata() if hasattr(error, "initial_metadata") else None
    return make_error(error.code(), error.details() or "", target=target, request_id=_find(initial, "x-request-id"),
                      **fields_of(error.trailing_metadata()))
