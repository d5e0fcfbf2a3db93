"""An honest client beside an attack, in a process of its own:

    neighbour.py JSON

JSON has grpc, http and metrics addresses, tokens (of a completion), ca (file of the certificate if gRPC has TLS) and http_tls
(whether HTTP has TLS too). The same seeded completion streams again and again, from before the attack to after it. Meanwhile
small completions start on the same connection, and probes ask health, /healthz, /v1/models and /metrics over new connections. A line
"start" on stdin begins the measurement, the end of stdin ends it; the last line of the output is a JSON object."""

import json
import ssl
import sys
import threading
import time
import urllib.request

import http2
import messages

PROMPT = "It was a fine morning in May, and"
SOURCE = "127.0.0.7"  # of the probes


class Neighbour:
    def __init__(self, fields):
        self._grpc, self._http, self._metrics = (fields.get(name) for name in ("grpc", "http", "metrics"))
        host, port = self._grpc.rsplit(":", 1)
        self._address = (host, int(port))
        self._tls = None
        if fields.get("ca"):
            self._tls = ssl.create_default_context(cafile=fields["ca"])
            self._tls.set_alpn_protocols(["h2"])
        self._http_tls = self._tls if fields.get("http_tls") else None
        self._limit = fields["tokens"]
        self.measuring = self.stopped = False
        self.streams, self.gaps, self.errors = [], {"token": 0.0, "first": 0.0, "probe": 0.0}, {}
        self.started = threading.Event()

    def _longest(self, name, seconds):
        if self.measuring:
            self.gaps[name] = max(self.gaps[name], seconds)

    def _failed(self, what, why):
        if self.measuring and not self.stopped:
            self.errors.setdefault(what, []).append(why)

    def stream(self, connection):
        try:
            while not self.stopped and self._one_stream(connection):
                pass
        except (http2.Closed, TimeoutError) as error:
            self._failed("the stream", str(error))
        self.started.set()

    def _one_stream(self, connection):
        """Whether the completion ended as it should."""
        call = connection.call("Complete", [("x-tenant-id", "neighbour")])
        call.send(messages.complete_request(PROMPT, self._limit), end=True)
        tokens, last = [], None
        self.streams.append(tokens)
        while not self.stopped:
            try:
                got = call.receive(timeout=0.1)
            except TimeoutError:
                if last is not None:
                    self._longest("token", time.monotonic() - last)
                continue
            if got is None:
                if call.status != "OK":
                    self._failed("the stream", f"{call.status} {call.message}")
                return call.status == "OK"
            tokens += messages.delta_tokens(got[1])
            if last is not None:
                self._longest("token", got[0] - last)
            last = got[0]
            self.started.set()
        call.cancel()
        return True

    def newcomer(self, connection):
        """Small completions: how long a call waits for its first token."""
        while not self.stopped:
            began = time.monotonic()
            try:
                call = connection.call("Complete", [("x-tenant-id", "neighbour")])
                call.send(messages.complete_request("It was", 2), end=True)
                while not self.stopped:
                    try:
                        got = call.receive(timeout=0.1)
                    except TimeoutError:
                        self._longest("first", time.monotonic() - began)
                        continue
                    self._longest("first", time.monotonic() - began)
                    if got is None:
                        if call.status != "OK":
                            self._failed("a small completion", f"{call.status} {call.message}")
                        break
            except (http2.Closed, TimeoutError) as error:
                self._failed("a small completion", str(error))
            time.sleep(0.1)

    def probe(self, ask, what):
        while not self.stopped:
            began = time.monotonic()
            try:
                ask()
            except Exception as error:  # whatever keeps an answer away
                self._failed(what, f"{type(error).__name__} {error}")
            self._longest("probe", time.monotonic() - began)
            time.sleep(0.2)

    def health(self):
        connection = http2.Connection(self._address, source=SOURCE, tls=self._tls, timeout=10)
        try:
            status, response, message = connection.unary("/grpc.health.v1.Health/Check", timeout=10)
            if status != "OK" or messages.parse(response).get(1) != [1]:
                raise AssertionError(f"{status} {message}")
        finally:
            connection.close()

    def run(self):
        connection = http2.Connection(self._address, tls=self._tls)
        # The probes ask the server itself, also where the calls pass an edge.
        asks = [(self.health, "health over gRPC")]
        for address, path, tls in ((self._http, "healthz", self._http_tls), (self._http, "v1/models", self._http_tls),
                                   (self._metrics, "metrics", None)):
            if address:
                url = f"{'https' if tls else 'http'}://{address}/{path}"
                asks.append((lambda url=url, tls=tls: urllib.request.urlopen(url, timeout=10, context=tls).read(), f"/{path}"))
        threads = [threading.Thread(target=self.stream, args=(connection,)), threading.Thread(target=self.newcomer, args=(connection,))]
        threads += [threading.Thread(target=self.probe, args=ask) for ask in asks]
        for thread in threads:
            thread.daemon = True
            thread.start()
        self.started.wait(30)
        print("ready", flush=True)
        for _ in sys.stdin:
            self.measuring = True
        self.stopped = True
        for thread in threads:
            thread.join(12)
        errors = [f"{what} failed {len(reasons)} times: {reasons[0]}" for what, reasons in self.errors.items()]
        print(json.dumps({"streams": self.streams, "gaps": self.gaps, "errors": errors}), flush=True)


if __name__ == "__main__":
    Neighbour(json.loads(sys.argv[1])).run()
