"""The configuration of a client: addresses, credentials and metadata."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import pathlib
import re
import ssl
from collections.abc import Iterable
from typing import Any

import grpc

DEFAULT_PORT = 50051
Path = str | os.PathLike[str]
Metadata = tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class Address:
    """target: what gRPC connects to, HOST:PORT or another scheme of gRPC's.
    secure: whether the target asks for TLS; None if it does not say.
    resolve: whether each address of the host name is a replica.
    authority: the name in the certificate, where it is not the host of the target.
    """

    target: str
    secure: bool | None = None
    resolve: bool = False
    authority: str = ""

    @property
    def host(self) -> str:
        return self.target.rpartition(":")[0]

    @property
    def port(self) -> str:
        return self.target.rpartition(":")[2]

    def at(self, target: str) -> Address:
        """A replica of this name."""
        return dataclasses.replace(self, target=target, resolve=False, authority=self.host.strip("[]"))


def _with_port(target: str, port: int) -> str:
    if re.fullmatch(r"(\[.*\]|[^:]*):\d+", target):
        return target
    bare_ipv6 = target.count(":") > 1 and not target.startswith("[")
    return f"[{target}]:{port}" if bare_ipv6 else f"{target}:{port}"


def parse_address(text: str, port: int = DEFAULT_PORT) -> Address:
    """HOST[:PORT], PORT, http://HOST:PORT, https://HOST[:PORT], dns:///HOST:PORT, or another target of gRPC's."""
    text = text.strip()
    if match := re.fullmatch(r"(https?)://([^/]+)/?", text):
        secure = match[1] == "https"
        return Address(_with_port(match[2], 443 if secure else port), secure=secure)
    if match := re.fullmatch(r"dns:(?:///)?([^/]+)", text):
        return Address(_with_port(match[1], port), resolve=True)
    if re.match(r"(unix|unix-abstract|ipv4|ipv6|xds):", text):
        return Address(text)
    if re.fullmatch(r"\d{1,5}", text):
        return Address(f"127.0.0.1:{text}")
    if not text or "/" in text:
        raise ValueError(f"target: expected HOST:PORT, http://HOST:PORT or https://HOST:PORT, found {text!r}")
    return Address(_with_port(text, port))


def parse_addresses(target: str | Iterable[str] | None) -> list[Address]:
    if target is None:
        target = os.environ.get("POLYSKETCH_SERVER") or f"127.0.0.1:{DEFAULT_PORT}"
    parts = target.split(",") if isinstance(target, str) else list(target)
    if not parts:
        raise ValueError("target: expected at least one address, found none")
    return [parse_address(part) for part in parts]


def _read(name: str, variable: str, path: Path | None) -> bytes | None:
    """The bytes of a PEM file that the argument, or else the environment, names."""
    path = path if path is not None else os.environ.get(variable) or None
    if path is None:
        return None
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{name}: cannot read {os.fspath(path)}: {error.strerror}") from error


class Config:
    """What a channel and a call need, from arguments and environment variables."""

    def __init__(self, *, tls_ca: Path | None, cert: Path | None, key: Path | None, api_key: str | None,
                 tenant: str | None, metadata: Iterable[tuple[str, str]]) -> None:
        # A chain of certificates is read from files alone.
        self._files = (cert or os.environ.get("POLYSKETCH_CERT"), key or os.environ.get("POLYSKETCH_KEY"))
        self._ca = _read("tls_ca", "POLYSKETCH_TLS_CA", tls_ca)
        self._cert = _read("cert", "POLYSKETCH_CERT", cert)
        self._key = _read("key", "POLYSKETCH_KEY", key)
        if (self._cert is None) != (self._key is None):
            found = "cert" if self._key is None else "key"
            raise ValueError(f"cert and key: expected both or neither, found {found} only")
        api_key = api_key if api_key is not None else os.environ.get("POLYSKETCH_API_KEY")
        self.metadata: Metadata = tuple(metadata)
        if api_key:
            self.metadata += (("authorization", f"Bearer {api_key}"),)
        if tenant:
            self.metadata += (("x-tenant-id", tenant),)

    def secure(self, address: Address) -> bool:
        """Whether an address is called with TLS."""
        return address.secure if address.secure is not None else bool(self._ca or self._cert)

    def credentials(self, address: Address) -> Any:
        """Of a channel; None: no TLS."""
        return grpc.ssl_channel_credentials(self._ca, self._key, self._cert) if self.secure(address) else None

    def ssl_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self._ca.decode() if self._ca else None)
        if self._cert is not None and self._files[0] and self._files[1]:
            context.load_cert_chain(self._files[0], self._files[1])
        return context

    @staticmethod
    def options(address: Address) -> list[tuple[str, Any]]:
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", -1),  # the server limits its messages
            ("grpc.max_send_message_length", -1),
            ("grpc.enable_http_proxy", 0),  # HTTP proxies rarely forward HTTP/2
            # A replica that restarts is found again soon: the client has backoffs of its own.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 5000),  # the time of one attempt to connect
            ("grpc.max_reconnect_backoff_ms", 2000),
            ("grpc.primary_user_agent", f"polysketch-python/{importlib.metadata.version('polysketch')}"),
        ]
        if address.authority:
            options.append(("grpc.default_authority", address.authority))
        return options
