"""deploy/haproxy in front of the server: what honest clients need passes, the limits of an address hold, and the attacks reach
neither the server nor a neighbour."""

import re
import subprocess
import unittest
import urllib.error
import urllib.request

import case
import edge
import http2
import messages
import serving
from attack_run import EDGE_PATIENCE, HEADER, AttackRun
from beside import ATTACKER

# One of each kind; all of them with full counts.
IN_CI = ("continuation_literals", "rapid_reset_8", "half_messages", "unread_replies", "open_streams", "slow_tls")


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", text).groups()
    return int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]


class Configuration(case.HostileTest):
    text = edge.CONFIGURATION.read_text()

    def number(self, pattern):
        return int(re.search(pattern, self.text)[1])

    def test_haproxy_accepts_it(self):
        certificate = edge.make_certificate(self.folder)
        said = subprocess.run([edge.PROGRAM, "-c", "-f", edge.CONFIGURATION], capture_output=True, text=True, check=False,
                              env={"EDGE_CERT": str(certificate.both)})
        self.assertEqual((said.returncode, re.findall("WARNING.*", said.stderr)), (0, []), said.stderr)

    def test_its_limits_fit_each_other_and_the_server(self):
        source = self.number(r"sc0_conn_cur gt (\d+)") * self.number(r"tune.h2.max-concurrent-streams (\d+)")
        places = self.number(r"EDGE_GRPC.*maxconn (\d+)")
        self.assertLessEqual(2 * source, places, "one address takes more than half of the places")
        # The health checks and the edge's own connections need some more.
        for flag in ("max-connections", "max-calls"):
            self.assertGreaterEqual(self.number(rf"--{flag} (\d+)"), places + 50)
        timeouts = {name: seconds(value) for name, value in re.findall(r"timeout ([a-z-]+) (\d+[a-z]+)", self.text)}
        self.assertGreater(timeouts["client"], 30, "the server's --stall-deadline ends calls, with a status")
        self.assertLess(timeouts["client"], EDGE_PATIENCE)
        self.assertGreaterEqual(timeouts["server"], 3600, "a call may wait in the queue")


class Edge(case.HostileTest):
    def start(self, flags=None):
        certificate = edge.make_certificate(self.folder)
        server = self.server(edge.server_flags(self.folder) | (flags or {}))
        proxy = edge.HAProxy(self.folder, server, certificate)
        self.addCleanup(proxy.stop)
        return server, proxy, certificate.client()

    def connect(self, proxy, tls, **options):
        connection = http2.Connection(serving.address_of(proxy.address), tls=tls, **options)
        self.addCleanup(connection.close)
        return connection

    def test_every_kind_of_call(self):
        _, proxy, tls = self.start()
        connection = self.connect(proxy, tls)
        status, model, _ = connection.unary("GetModel")
        self.assertEqual((status, bool(model)), ("OK", True))
        # An error has its status and its message.
        status, _, message = connection.unary("Tokenize", b"\xff")
        self.assertEqual(status, "INVALID_ARGUMENT")
        self.assertIn("expected a polysketch.v1.TokenizeRequest", message)
        # Both ways at once: a part of a score is answered before the next is sent.
        call = connection.call("Score")
        for _ in range(2):
            call.send(messages.field(1, "It was a fine morning in May. " * 200))
            self.assertIsNotNone(call.receive(10))
        call.half_close()
        self.assertEqual(call.wait(), "OK")
        # A session and what continues it.
        _, session, _ = connection.unary("CreateSession")
        call = connection.call("Append")
        call.send(messages.append_request(messages.session_id(session), "It was late"), end=True)
        self.assertEqual(call.wait(), "OK")

    def test_tokens_come_one_by_one_and_are_those_of_the_server(self):
        server, proxy, tls = self.start()
        call = self.connect(proxy, tls).call("Complete")
        call.send(messages.complete_request("It was", 800), end=True)
        times, tokens = [], []
        while (got := call.receive()) is not None:
            times.append(got[0])
            tokens += messages.delta_tokens(got[1])
        # A server whose tokens wait sends several in a message; a proxy that gathered them would make two of its buffers.
        self.assertGreater(len(times), 20)
        with serving.Server() as other:
            self.assertEqual(serving.completion(other.grpc, "It was", 800)[0], tokens)

    def test_http(self):
        _, proxy, tls = self.start()

        def get(path, data=None):
            request = urllib.request.Request(f"https://{proxy.address}{path}", data, {"Content-Type": "application/json"})
            tls.set_alpn_protocols(["http/1.1"])
            try:
                return urllib.request.urlopen(request, context=tls, timeout=20).status
            except urllib.error.HTTPError as error:
                return error.code

        self.assertEqual(get("/v1/models"), 200)
        self.assertEqual(get("/v1/completions", b'{"prompt": "It was", "max_tokens": 4}'), 200)
        self.assertEqual(get("/readyz"), 200)
        for path in ("/", "/metrics", "/status", "/healthz"):
            self.assertEqual(get(path), 404, path)

    def test_the_tenant_of_a_client_is_removed(self):
        _, proxy, tls = self.start()
        connection = self.connect(proxy, tls)
        _, session, _ = connection.unary("CreateSession", metadata=[("x-tenant-id", "one")])
        status, listed, _ = connection.unary("ListSessions", metadata=[("x-tenant-id", "two")])
        self.assertEqual(status, "OK")
        self.assertIn(messages.session_id(session).encode(), listed)

    def test_an_address_has_ten_connections(self):
        server, proxy, tls = self.start()
        kept = []
        for _ in range(30):
            try:
                connection = self.connect(proxy, tls, source=ATTACKER, timeout=2)
                if connection.unary("GetModel", timeout=5)[0] == "OK":
                    kept.append(connection)
            except (OSError, http2.Closed, TimeoutError):
                pass
        self.assertEqual(len(kept), 10)
        self.assertEqual(self.connect(proxy, tls).unary("GetModel")[0], "OK")  # another address

    def test_an_address_has_2000_calls_in_10_seconds(self):
        _, proxy, tls = self.start()
        connection = self.connect(proxy, tls, source=ATTACKER)
        said = {}
        for _ in range(2300):
            status, _, message = connection.unary("/no.such/Method")
            said[status] = message
            if status == "RESOURCE_EXHAUSTED":
                break
        self.assertIn("too many calls of this address", said.get("RESOURCE_EXHAUSTED", str(said)))
        self.assertEqual(self.connect(proxy, tls).unary("GetModel")[0], "OK")  # another address

    def test_a_drain_moves_calls_away(self):
        """A server that is not ready gets no calls; clients hear UNAVAILABLE, as HTTP 503."""
        server, proxy, tls = self.start({"drain-timeout": "8s"})
        running = self.connect(proxy, tls).call("Complete")
        others = [self.connect(proxy, tls)]
        running.send(messages.complete_request("It was", 1000000), end=True)
        self.assertIsNotNone(running.receive())
        server.process.terminate()

        def refused():
            try:
                return others[-1].unary("GetModel")[0] == "HTTP 503"
            except http2.Closed:  # UNAVAILABLE too, of a call that the server's end of the connection met; clients connect again
                others.append(self.connect(proxy, tls))
                return False

        serving.wait_until(refused, "an edge that knows of the drain", 7)
        self.assertIsNotNone(running.receive(), "a running stream goes on")

    def test_attacks(self):
        run = AttackRun(full=case.FULL, through_edge=True)
        print("\n" + HEADER, flush=True)
        for attack in run.attacks(() if case.FULL else IN_CI):
            with self.subTest(attack=attack.name):
                for row in run.runs(attack):
                    print(row.markdown(), flush=True)
                self.assertEqual(row.broken, [])


if __name__ == "__main__":
    unittest.main()
