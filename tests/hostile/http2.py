"""HTTP/2 by hand (RFC 9113): frames, literal HPACK (RFC 7541), a connection whose reader thread keeps the flow control, and the
calls of gRPC on it. Nothing is checked for good manners: an attack sends what it wants by Connection.send."""

import collections
import queue
import select
import socket
import ssl
import struct
import threading
import time

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
INITIAL_WINDOW_SIZE = 4
MAX_FRAME = 16384
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SERVICE = "/polysketch.v1.PolySketch/"

CODES = ("OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED RESOURCE_EXHAUSTED "
         "FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED").split()
# What gRPC's clients make of RST_STREAM; other error codes are INTERNAL.
RESET_CODES = {7: "UNAVAILABLE", 8: "CANCELLED", 11: "RESOURCE_EXHAUSTED", 12: "PERMISSION_DENIED"}


def frame(kind, flags=0, stream=0, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def settings(**values):
    """A SETTINGS frame; of the settings only the initial window size is needed."""
    window = values.get("window")
    return frame(SETTINGS, payload=b"" if window is None else struct.pack(">HI", INITIAL_WINDOW_SIZE, window))


# --- HPACK ---


def _integer(value, prefix, first=0):
    most = (1 << prefix) - 1
    if value < most:
        return bytes([first | value])
    out, value = bytearray([first | most]), value - most
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def literal(name, value):
    """A header field without indexing, its texts as they are."""
    name = name.encode() if isinstance(name, str) else name
    value = value.encode() if isinstance(value, str) else value
    return b"\0" + _integer(len(name), 7) + name + _integer(len(value), 7) + value


def request_block(path, metadata=()):
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"),
              ("content-type", "application/grpc"), ("te", "trailers"), *metadata]
    return b"".join(literal(name, value) for name, value in fields)


_STATIC = [(name, "") for name in (
    ":authority :method :method :path :path :scheme :scheme :status :status :status :status :status :status :status "
    "accept-charset accept-encoding accept-language accept-ranges accept access-control-allow-origin age allow authorization "
    "cache-control content-disposition content-encoding content-language content-length content-location content-range "
    "content-type cookie date etag expect expires from host if-match if-modified-since if-none-match if-range "
    "if-unmodified-since last-modified link location max-forwards proxy-authenticate proxy-authorization range referer refresh "
    "retry-after server set-cookie strict-transport-security transfer-encoding user-agent vary via www-authenticate").split()]
for _place, _value in enumerate(("200", "204", "206", "304", "400", "404", "500"), 7):
    _STATIC[_place] = (":status", _value)


class HeaderDecoder:
    """Decodes header blocks. A text in Huffman's code, which neither gRPC nor HAProxy sends for the fields that matter here,
    becomes "?"."""

    def __init__(self):
        self._dynamic = []

    def decode(self, block):
        fields, at = [], 0

        def integer(prefix):
            nonlocal at
            most = (1 << prefix) - 1
            value, shift, at = block[at] & most, 0, at + 1
            while value >= most:
                value, shift, at = value + ((block[at] & 127) << shift), shift + 7, at + 1
                if block[at - 1] < 128:
                    break
            return value

        def text():
            nonlocal at
            huffman = block[at] & 128
            length = integer(7)
            at += length
            return "?" if huffman else block[at - length:at].decode("latin-1")

        def entry(index):
            return _STATIC[index - 1] if index <= len(_STATIC) else self._dynamic[index - len(_STATIC) - 1]

        while at < len(block):
            first = block[at]
            if first & 128:
                fields.append(entry(integer(7)))
            elif first & 0xE0 == 0x20:
                integer(5)  # the size of the table, never smaller here
            else:
                index = integer(6 if first & 64 else 4)
                field = (entry(index)[0] if index else text(), text())
                fields.append(field)
                if first & 64:
                    self._dynamic.insert(0, field)
        return fields


# --- connections and calls ---


class Closed(Exception):
    """The connection has ended, or the stream was reset."""


class Call:
    """A call of gRPC: messages out, messages in with the time of their arrival, and the status."""

    def __init__(self, connection, number):
        self._connection, self.number = connection, number
        self.window = connection.peer_window
        self.status = None  # a name of CODES once the call has ended
        self.message = ""
        self._bytes = b""
        self._messages = queue.SimpleQueue()

    def send(self, message, end=False, declared=None, timeout=30):
        """A message with the length that it declares. Waits for the flow control."""
        length = len(message) if declared is None else declared
        self.send_bytes(b"\0" + struct.pack(">I", length) + message, end, timeout)

    def send_bytes(self, data, end=False, timeout=30):
        while True:
            part = self._connection.take_window(self, len(data), timeout)
            last = part == len(data)
            self._connection.send(frame(DATA, END_STREAM if end and last else 0, self.number, data[:part]))
            data = data[part:]
            if last:
                return

    def half_close(self):
        self._connection.send(frame(DATA, END_STREAM, self.number))

    def cancel(self):
        self._connection.send(frame(RST_STREAM, 0, self.number, struct.pack(">I", 8)))
        self._connection.forget(self)

    def receive(self, timeout=30):
        """(time of arrival, message), or None once the call has ended. TimeoutError when neither arrives."""
        try:
            got = self._messages.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no message in {timeout:.1f} s") from None
        if got is None:
            self._messages.put(None)  # for the next receive
        return got

    def wait(self, timeout=30):
        """The status; messages are dropped."""
        end = time.monotonic() + timeout
        while self.receive(max(0.0, end - time.monotonic())) is not None:
            pass
        return self.status

    # Of the reader thread.
    def on_data(self, data):
        self._bytes += data
        while len(self._bytes) >= 5:
            length = struct.unpack(">I", self._bytes[1:5])[0]
            if len(self._bytes) < 5 + length:
                break
            self._messages.put((time.monotonic(), self._bytes[5:5 + length]))
            self._bytes = self._bytes[5 + length:]

    def end(self, status, message=""):
        if self.status is None:
            self.status, self.message = status, message
            self._messages.put(None)


class Connection:
    """A client's connection. `address`: (host, port), or the path of a unix socket. With read=False nothing is read and
    no window is opened after the first. `window`: of each stream, for what the server sends."""

    def __init__(self, address, source=None, tls=None, window=1 << 24, read=True, timeout=10):
        if isinstance(address, str):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(timeout)
            self.socket.connect(address)
        else:
            self.socket = socket.create_connection(address, timeout, (source, 0) if source else None)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.peer_window = 65535
        self.closed = False
        self.goaway = None  # the error code
        self.calls = {}
        self.statuses = collections.Counter()
        self._window, self._next, self._extend = 65535, 1, window > 0
        self._change = threading.Condition()
        self._sending = threading.Lock()
        self._decoder = HeaderDecoder()
        self.socket.settimeout(None if tls is None else 0)
        # OpenSSL does not let two threads use a connection at once.
        self._tls = threading.Lock() if tls is not None else None
        self.send(PREFACE + settings(window=window) + (frame(WINDOW_UPDATE, payload=struct.pack(">I", 1 << 30)) if window else b""))
        self._reader = threading.Thread(target=self._read, daemon=True)
        if read:
            self._reader.start()

    def _send_all(self, data):
        if self._tls is None:
            self.socket.sendall(data)
            return
        data = memoryview(data)
        while data:
            try:
                with self._tls:
                    data = data[self.socket.send(data):]
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                select.select([], [self.socket], [], 1)

    def _receive(self):
        while self._tls is not None:
            try:
                with self._tls:
                    return self.socket.recv(1 << 16)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                select.select([self.socket], [], [], 1)
        return self.socket.recv(1 << 16)

    def send(self, data):
        try:
            with self._sending:
                self._send_all(data)
        except (OSError, ValueError) as error:
            self._end()
            raise Closed(str(error)) from None

    def call(self, method, metadata=()):
        """Opens a stream: a method of the service, or a full path."""
        path = method if method.startswith("/") else SERVICE + method
        with self._sending:
            call = Call(self, self._next)
            self._next += 2
            self.calls[call.number] = call
            if self.closed:
                call.end("UNAVAILABLE", "connection closed")
                raise Closed("connection closed")
            try:
                self._send_all(frame(HEADERS, END_HEADERS, call.number, request_block(path, metadata)))
            except (OSError, ValueError) as error:
                raise Closed(str(error)) from None
        return call

    def unary(self, method, message=b"", metadata=(), timeout=30):
        """(status, response or None, message of the error)"""
        call = self.call(method, metadata)
        call.send(message, end=True, timeout=timeout)
        got = call.receive(timeout)
        status = call.wait(timeout)
        return status, got and got[1], call.message

    def take_window(self, call, wanted, timeout):
        """How many of the bytes may be sent now; at least one, unless none are wanted."""
        with self._change:
            def room():
                return min(wanted, self._window, call.window, MAX_FRAME)

            def ready():
                return self.closed or call.status is not None or not wanted or room() > 0

            if not self._change.wait_for(ready, timeout):
                raise TimeoutError(f"no window in {timeout} s")
            if self.closed or call.status is not None:
                raise Closed(call.status or "connection closed")
            part = room()
            self._window -= part
            call.window -= part
            return part

    def forget(self, call):
        self.calls.pop(call.number, None)

    def close(self):
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        # The reader must not meet another socket that gets the same descriptor.
        if self._reader.ident is not None and self._reader is not threading.current_thread():
            self._reader.join(5)
        self.socket.close()

    def _end(self):
        with self._change:
            self.closed = True
            for call in list(self.calls.values()):
                call.end("UNAVAILABLE", "connection closed")
            self._change.notify_all()

    def _read(self):
        data, block = bytearray(), b""
        try:
            while True:
                while len(data) < 9 or len(data) < 9 + int.from_bytes(data[:3], "big"):
                    more = self._receive()
                    if not more:
                        return
                    data += more
                length, kind, flags = int.from_bytes(data[:3], "big"), data[3], data[4]
                number, payload = int.from_bytes(data[5:9], "big"), bytes(data[9:9 + length])
                del data[:9 + length]
                if kind == HEADERS or kind == CONTINUATION:
                    block = payload if kind == HEADERS else block + payload
                    if flags & END_HEADERS:
                        self._on_headers(number, self._decoder.decode(block))
                self._on_frame(kind, flags, number, payload)
        except (OSError, Closed, ssl.SSLError, ValueError):
            pass
        finally:
            self._end()

    def _on_headers(self, number, fields):
        fields = dict(fields)
        call = self.calls.get(number)
        if call is None:
            return
        if "grpc-status" in fields:
            code = fields["grpc-status"]
            self._finish(call, CODES[int(code)] if code.isdigit() and int(code) < len(CODES) else "UNKNOWN",
                         fields.get("grpc-message", ""))
        elif fields.get(":status", "200") != "200":
            self._finish(call, "HTTP " + fields[":status"])

    def _finish(self, call, status, message=""):
        self.statuses[status] += 1
        call.end(status, message)
        with self._change:
            self._change.notify_all()
        self.forget(call)

    def _on_frame(self, kind, flags, number, payload):
        call = self.calls.get(number)
        if kind == DATA and payload:
            if self._extend:
                step = struct.pack(">I", len(payload))
                update = frame(WINDOW_UPDATE, payload=step)
                self.send(update + (frame(WINDOW_UPDATE, 0, number, step) if call else b""))
            if call is not None:
                call.on_data(payload)
        elif kind == RST_STREAM and call is not None:
            error = int.from_bytes(payload, "big")
            # A server that has answered resets a stream whose client has not ended it.
            self._finish(call, RESET_CODES.get(error, "INTERNAL"), f"RST_STREAM {error}")
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[at:at + 6])
                if name == INITIAL_WINDOW_SIZE:
                    with self._change:
                        for one in self.calls.values():
                            one.window += value - self.peer_window
                        self.peer_window = value
                        self._change.notify_all()
            self.send(frame(SETTINGS, ACK))
        elif kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            self.goaway = int.from_bytes(payload[4:8], "big")
        elif kind == WINDOW_UPDATE:
            step = int.from_bytes(payload, "big")
            with self._change:
                if number == 0:
                    self._window += step
                elif call is not None:
                    call.window += step
                self._change.notify_all()
