"""Exceptions of the client: one class for each gRPC status code that the server returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

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
    retry_after: seconds after which the server asks for another try; None if it does not ask.
    target: address of the replica that was called.
    request_id: id of the request in the log of the server; None if it is not known. grpc.aio loses it where a stream fails
      before its first message.
    """

    def __init__(self, code: Any, message: str, *, retry_after: float | None = None, target: str = "",
                 request_id: str | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
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
    """Another request uses the session, or the client read nothing for longer than --stall-deadline."""


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


def retry_delay(trailing: Iterable[tuple[str, Any]] | None) -> float | None:
    """Seconds of google.rpc.RetryInfo in the status details, or of retry-after-ms; None without either."""
    trailing = list(trailing or ())
    details = _find(trailing, "grpc-status-details-bin")
    if details is not None:
        status = _wire_pb2.Status()
        info = _wire_pb2.RetryInfo()
        try:
            status.ParseFromString(details)
            for detail in status.details:
                if detail.type_url.endswith("/google.rpc.RetryInfo"):
                    info.ParseFromString(detail.value)
                    return info.retry_delay.seconds + info.retry_delay.nanos / 1e9
        except DecodeError:
            pass  # another program's details
    milliseconds = _find(trailing, "retry-after-ms")
    return int(milliseconds) / 1000 if milliseconds is not None and str(milliseconds).isdecimal() else None


def from_grpc(error: Any, target: str) -> RpcError:
    """The exception of a grpc.RpcError or grpc.aio.AioRpcError."""
    trailing = error.trailing_metadata()
    # A call that never reached a server has no initial metadata to wait for.
    initial = error.initial_metadata() if hasattr(error, "initial_metadata") else None
    return make_error(error.code(), error.details() or "", retry_after=retry_delay(trailing), target=target,
                      request_id=_find(initial, "x-request-id"))
