"""Requests to the HTTP port, for what gRPC does not have: chat."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any

import grpc

from polysketch._config import Config, parse_address
from polysketch.errors import RpcError, make_error
from polysketch.retry import Deadline, Retry

DEFAULT_HTTP_PORT = 8000
MAX_ERROR_BYTES = 1 << 20

_CODES: dict[int, Any] = {
    400: grpc.StatusCode.INVALID_ARGUMENT, 401: grpc.StatusCode.UNAUTHENTICATED, 403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND, 405: grpc.StatusCode.UNIMPLEMENTED, 409: grpc.StatusCode.ABORTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED, 429: grpc.StatusCode.RESOURCE_EXHAUSTED, 500: grpc.StatusCode.INTERNAL,
    501: grpc.StatusCode.UNIMPLEMENTED, 503: grpc.StatusCode.UNAVAILABLE, 504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


def error_of(status: int, body: bytes, headers: Mapping[str, str], target: str) -> RpcError:
    """The exception of an answer that is no 200: those of OpenAI's API say what is wrong."""
    try:
        error = json.loads(body)["error"]
        message, param, reason = str(error["message"]), error.get("param"), error.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        message, param, reason = f"HTTP status {status}: {body[:200].decode(errors='replace')}", None, None
    wait = headers.get("retry-after-ms", "")
    return make_error(_CODES.get(status, grpc.StatusCode.UNKNOWN), message, target=target, reason=str(reason or ""),
                      fields={str(param): message} if param else None, request_id=headers.get("x-request-id"),
                      retry_after=int(wait) / 1000 if wait.isdecimal() else None)


class Events:
    """The events of an answer, as they arrive. close ends the connection, and so the request; another thread may call it."""

    def __init__(self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse, target: str) -> None:
        self._connection, self._answer, self._target = connection, answer, target

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            while line := self._answer.readline():
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event = json.loads(line[len(b"data: "):])
                if event.get("error") and "response" not in event:
                    raise error_of(500, line[len(b"data: "):], {}, self._target)
                yield event
        except TimeoutError as error:
            raise make_error(grpc.StatusCode.DEADLINE_EXCEEDED, "the timeout has passed", target=self._target) from error
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            raise make_error(grpc.StatusCode.UNAVAILABLE, f"the connection broke: {error}", target=self._target) from error
        finally:
            self.close()

    def close(self) -> None:
        # Wakes a thread that reads.
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class HttpPort:
    """The HTTP port of the server. Threads may share it."""

    def __init__(self, address: str, config: Config, retry: Retry | None) -> None:
        parsed = parse_address(address, DEFAULT_HTTP_PORT)
        if parsed.resolve or not parsed.target.rpartition(":")[2].isdecimal():
            raise ValueError(f"http: expected HOST:PORT, http://HOST:PORT or https://HOST:PORT, found {address!r}")
        self.target, self._retry = parsed.target, retry
        self._host, self._port = parsed.host.strip("[]"), int(parsed.port)
        self._context: ssl.SSLContext | None = None
        if config.secure(parsed):
            self._context = config.ssl_context()
        self._headers = {"Content-Type": "application/json"}
        for name, value in config.metadata:
            self._headers[name] = value

    def _connect(self, seconds: float | None) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        return http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=self._context)

    def _once(self, method: str, path: str, body: Any, deadline: Deadline) -> Events:
        connection = self._connect(deadline.left())
        try:
            connection.request(method, path, None if body is None else json.dumps(body).encode(), self._headers)
            answer = connection.getresponse()
            if answer.status == 200:
                return Events(connection, answer, self.target)
            headers = {name.lower(): value for name, value in answer.getheaders()}
            raise error_of(answer.status, answer.read(MAX_ERROR_BYTES), headers, self.target)
        except TimeoutError as error:
            connection.close()
            raise make_error(grpc.StatusCode.DEADLINE_EXCEEDED, "the timeout has passed", target=self.target) from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise make_error(grpc.StatusCode.UNAVAILABLE, f"no answer: {error}", target=self.target) from error
        except BaseException:
            connection.close()
            raise

    def call(self, method: str, path: str, body: Any, timeout: float | None) -> Events:
        """Sends a request until it is answered, as Retry says. Raises what the last try raised."""
        deadline = Deadline(timeout)
        rounds = 0
        while True:
            try:
                return self._once(method, path, body, deadline)
            except RpcError as error:
                again = error.code is grpc.StatusCode.UNAVAILABLE or error.retry_after is not None
                rounds += 1
                if self._retry is None or not again or rounds >= self._retry.attempts:
                    raise
                wait = max(self._retry.backoff(rounds), error.retry_after or 0.0)
                left = deadline.left()
                if left is not None and wait >= left:
                    raise
            time.sleep(wait)
