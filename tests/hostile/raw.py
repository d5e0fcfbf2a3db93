"""Floods: as many bytes as a connection takes, again and again, without manners. Everything that the server sends is read, so
that it never waits for the attacker."""

import collections
import os
import select
import socket
import ssl
import threading
import time

import http2


class Outcome:
    """What the connections of an attack saw. Thread-safe."""

    def __init__(self):
        self._lock = threading.Lock()
        self.connections = self.closed = self.refused = self.sent = 0
        self.longest = 0.0  # seconds from the first byte of a connection to its end by the server
        self.codes = collections.Counter()

    def count(self, **values):
        with self._lock:
            for name, value in values.items():
                if name == "longest":
                    self.longest = max(self.longest, value)
                elif name == "code":
                    self.codes[value] += 1
                else:
                    setattr(self, name, getattr(self, name) + value)

    def result(self):
        return {"connections": self.connections, "closed": self.closed, "refused": self.refused, "sent": self.sent,
                "longest": round(self.longest, 3), "codes": dict(self.codes)}


class FrameReader:
    """Finds GOAWAY and RST_STREAM in what the server sends."""

    def __init__(self, outcome):
        self._outcome, self._data = outcome, bytearray()

    def feed(self, data):
        self._data += data
        at = 0
        while len(self._data) - at >= 9:
            length, kind = int.from_bytes(self._data[at:at + 3], "big"), self._data[at + 3]
            if len(self._data) - at < 9 + length:
                break
            payload = self._data[at + 9:at + 9 + length]
            if kind == http2.GOAWAY:
                self._outcome.count(code=f"GOAWAY {int.from_bytes(payload[4:8], 'big')}")
            elif kind == http2.RST_STREAM:
                self._outcome.count(code=f"RST_STREAM {int.from_bytes(payload, 'big')}")
            at += 9 + length
        del self._data[:at]


def connect(target):
    """A connected socket that does not block."""
    made = socket.create_connection(target.grpc, 5, (target.source, 0) if target.source else None)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if target.tls is not None:
        made = target.tls.wrap_socket(made, server_hostname="localhost")
    made.setblocking(False)
    return made


WAIT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def _flood_once(made, chunks, end, outcome):
    """Sends chunks until the server closes the connection, or until the end. Returns whether the server closed it."""
    reader, rest = FrameReader(outcome), memoryview(b"")
    while time.monotonic() < end:
        readable, writable, _ = select.select([made], [made], [], 0.05)
        try:
            if readable:
                while True:
                    got = made.recv(1 << 16)
                    if not got:
                        return True
                    reader.feed(got)
        except WAIT:
            pass
        try:
            while writable and time.monotonic() < end:
                if not rest:
                    rest = memoryview(next(chunks))
                sent = made.send(rest)
                outcome.count(sent=sent)
                rest = rest[sent:]
        except WAIT:
            pass
    return False


def flood(target, chunks, connections=1):
    """Each of the connections sends the preface and then next(chunks()), again from the start when the server closes it."""
    outcome = Outcome()
    end = time.monotonic() + target.seconds

    def run():
        while time.monotonic() < end:
            try:
                made = connect(target)
            except OSError:
                outcome.count(refused=1)
                time.sleep(0.02)
                continue
            began = time.monotonic()
            outcome.count(connections=1)
            try:
                made.setblocking(True)
                made.sendall(http2.PREFACE + http2.settings())
                made.setblocking(False)
                closed = _flood_once(made, chunks(), end, outcome)
            except OSError:
                closed = True
            made.close()
            if closed:
                outcome.count(closed=1, longest=time.monotonic() - began)

    threads = [threading.Thread(target=run) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcome.result()


def hold(target, address, openings, drip=None, every=0.25, again=True):
    """Opens a socket for each of `openings` (bytes to send first), keeps them open until the end, and sends `drip` on each
    now and then. A socket that the server closes is opened again."""
    outcome = Outcome()
    end = time.monotonic() + target.seconds
    open_sockets = {}

    def start(opening):
        try:
            made = socket.create_connection(address, 2, (target.source, 0) if target.source else None)
            made.setblocking(False)
            if opening:
                made.send(opening)
        except OSError:
            outcome.count(refused=1)
            return
        outcome.count(connections=1)
        open_sockets[made] = (opening, time.monotonic())

    for opening in openings:
        start(opening)
    next_drip = time.monotonic() + every
    while time.monotonic() < end:
        ended = []
        readable = select.select(list(open_sockets), [], [], 0.05)[0] if open_sockets else time.sleep(0.05) or []
        for made in readable:
            try:
                if not made.recv(1 << 16):
                    ended.append(made)
            except OSError:
                ended.append(made)
        if drip and time.monotonic() >= next_drip:
            next_drip += every
            for made in open_sockets:
                try:
                    made.send(drip)
                except OSError:
                    ended.append(made)
        for made in dict.fromkeys(ended):
            opening, began = open_sockets.pop(made)
            outcome.count(closed=1, longest=time.monotonic() - began)
            made.close()
            if again:
                start(opening)
    result = outcome.result() | {"open": len(open_sockets)}
    for made in open_sockets:
        made.close()
    return result


def lower_priority():
    os.nice(19)
