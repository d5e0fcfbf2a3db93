"""What the sync and the asyncio client have in common: their parameters and their channels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from polysketch._config import Address, Config, Path, parse_addresses
from polysketch._http import DEFAULT_HTTP_PORT, HttpPort
from polysketch._replicas import Replicas
from polysketch.retry import Retry
from polysketch.v1 import polysketch_pb2_grpc


class ClientBase:
    _channels: ClassVar[Any]  # the module that makes channels: grpc or grpc.aio

    # Client documents the parameters.
    def __init__(self, target: str | Iterable[str] | None = None, *, tls_ca: Path | None = None,
                 cert: Path | None = None, key: Path | None = None, api_key: str | None = None,
                 timeout: float | None = None, retry: Retry | None = Retry(), tenant: str | None = None,
                 metadata: Iterable[tuple[str, str]] = (), http: str | None = None) -> None:
        self._config = Config(tls_ca=tls_ca, cert=cert, key=key, api_key=api_key, tenant=tenant, metadata=metadata)
        self._timeout = timeout
        self._retry = retry
        self._http = http
        addresses = parse_addresses(target)
        self._first = addresses[0]
        self._replicas = Replicas(addresses, self._connect)

    def _connect(self, address: Address) -> tuple[Any, Any]:
        credentials, options = self._config.credentials(address), self._config.options(address)
        channel = (self._channels.insecure_channel(address.target, options) if credentials is None else
                   self._channels.secure_channel(address.target, credentials, options))
        return channel, polysketch_pb2_grpc.PolySketchStub(channel)

    def _http_port(self) -> HttpPort:
        address = self._http
        if address is None:
            secure = self._first.secure
            scheme = "" if secure is None else "https://" if secure else "http://"
            address = f"{scheme}{self._first.host}:{DEFAULT_HTTP_PORT}"
        return HttpPort(address, self._config, self._retry)

    def _metadata(self, session: str = "") -> tuple[tuple[str, str], ...]:
        # Proxies route by it: the calls of a session belong to one replica.
        return self._config.metadata + ((("x-session-id", session),) if session else ())
