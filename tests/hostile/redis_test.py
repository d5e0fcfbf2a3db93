"""A Redis that is slow, hangs, lies, breaks connections or starts again: errors in time and never an end of the server, no
session lost that was acknowledged, and a neighbour that notices nothing."""

import time
import unittest

import case
import messages
from redis_proxy import LIES, Redis, RedisProxy

ERRORS = {"UNAVAILABLE", "RESOURCE_EXHAUSTED", "DATA_LOSS", "ABORTED", "DEADLINE_EXCEEDED"}
LONGEST_CALL = 15.0  # seconds until a call of a store that does not answer has its error


class RedisStore(case.HostileTest):
    def start(self):
        self.redis = Redis(self.folder)
        self.addCleanup(self.redis.stop)
        self.proxy = RedisProxy(self.redis.port)
        self.addCleanup(self.proxy.stop)
        # Memory for no session: each call reads and writes the store.
        self.flags = {"state-store": f"redis://127.0.0.1:{self.proxy.port}", "session-memory": 1}
        server = self.server(self.flags)
        client = self.sessions(server)
        _, session = client.create()
        self.assertEqual(client.append(session, "It was a fine morning"), "OK")
        return server, client, session

    def use(self, client, session, allowed):
        for call in (client.create, lambda: (client.append(session, "It was late"),), client.listed,
                     lambda: client.unary("SnapshotSession", messages.field(1, session))):
            began = time.monotonic()
            status = call()[0]
            self.assertIn(status, allowed | {"OK"}, client.spoken[-1:])
            self.assertLess(time.monotonic() - began, LONGEST_CALL)

    def back_to_normal(self, server, client, beside):
        self.proxy.mode = "pass"
        self.assertGreater(self.proxy.replies, 0, "the fault never happened")
        self.assert_serving(server)
        self.assert_unharmed(beside)
        self.assert_says_no_path(client)
        # A connection that broke is made again within a moment.
        end = time.monotonic() + 10
        while (lost := client.lost()) and time.monotonic() < end:
            time.sleep(0.2)
        self.assertEqual(lost, [])
        # A replica sees what the server sees; another server finds what was acknowledged.
        replica = self.server(self.flags)
        self.assertEqual(self.sessions(replica).listed(), client.listed())
        replica.stop()
        server.process.kill()
        server.process.wait()
        client.connect(self.server(self.flags).grpc)
        self.assertEqual(client.lost(), [])

    def test_is_slow(self):
        server, client, session = self.start()
        beside = self.beside(server)
        self.proxy.mode, self.proxy.delay = "slow", 0.2
        self.use(client, session, set())
        self.back_to_normal(server, client, beside)

    def test_hangs(self):
        server, client, session = self.start()
        beside = self.beside(server)
        self.proxy.mode = "hang"
        self.use(client, session, ERRORS) if case.FULL else self.assertIn(client.append(session, "It was late"), ERRORS | {"OK"})
        self.back_to_normal(server, client, beside)

    def test_refuses_and_breaks_connections(self):
        server, client, session = self.start()
        beside = self.beside(server)
        for mode in ("break", "refuse"):
            self.proxy.mode = mode
            self.use(client, session, ERRORS)
        self.back_to_normal(server, client, beside)

    def test_loses_replies(self):
        server, client, session = self.start()
        beside = self.beside(server)
        self.proxy.mode = "lose"
        self.assertEqual(client.append(session, "It was late"), "ABORTED")
        self.assertIn("unknown", client.spoken[-1][2])
        self.use(client, session, ERRORS)
        self.back_to_normal(server, client, beside)

    def test_says_more_than_it_was_asked(self):
        server, client, session = self.start()
        beside = self.beside(server)
        for mode, delay in (("push", 0.0), ("repeat", 0.0), ("repeat", 0.002), ("repeat", 0.05)):
            self.proxy.mode, self.proxy.delay = mode, delay
            for _ in range(5):
                self.use(client, session, ERRORS)
            # The next call is right at once.
            self.proxy.mode = "pass"
            self.assertEqual(client.append(session, "It was late"), "OK", f"{mode} {delay}: {client.spoken[-1:]}")
        self.back_to_normal(server, client, beside)

    def test_starts_again(self):
        server, client, session = self.start()
        beside = self.beside(server)
        self.redis.stop()
        self.proxy.replies += 1
        self.use(client, session, ERRORS)
        self.redis.start()
        self.back_to_normal(server, client, beside)

    def test_lies(self):
        server, client, session = self.start()
        beside = self.beside(server)
        self.proxy.mode = "lie"
        for lie in LIES if case.FULL else LIES[::4]:
            self.proxy.lie = lie
            self.use_lied_to(client, session)
            self.assertTrue(server.alive(), f"{lie}: status {server.process.poll()}, {server.log()[-500:]}")
        self.ends_well(server, client, beside)

    def test_mangles_replies(self):
        server, client, session = self.start()
        beside = self.beside(server)
        self.proxy.mode = "mangle"
        for _ in range(100 if case.FULL else 4):
            self.use_lied_to(client, session)
            self.assertTrue(server.alive(), f"status {server.process.poll()}, {server.log()[-500:]}")
        self.ends_well(server, client, beside)

    def use_lied_to(self, client, session):
        """Any status; what a liar acknowledged is not known."""
        known = dict(client.acknowledged)
        client.create()
        client.append(session, "It was late", timeout=LONGEST_CALL)
        client.listed()
        client.acknowledged = known

    def ends_well(self, server, client, beside):
        """As back_to_normal; only the session that is no one's use, because a lie may have been an acknowledgement."""
        self.proxy.mode = "pass"
        self.assertGreater(self.proxy.replies, 0)
        self.assert_serving(server)
        self.assert_unharmed(beside)
        self.assert_says_no_path(client)
        end = time.monotonic() + 10
        while (status := client.create()[0]) != "OK" and time.monotonic() < end:
            time.sleep(0.2)
        self.assertEqual(status, "OK")


if __name__ == "__main__":
    unittest.main()
