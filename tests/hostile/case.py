"""What the tests of this folder share: a folder, servers, a neighbour, and whether the counts are full."""

import os
import shutil
import unittest

import serving
from beside import REFERENCE, Beside
from sessions import SessionClient

FULL = os.environ.get("POLYSKETCH_TEST_FULL") == "1"
LONGEST_GAP = 1.0


class Late(AssertionError):
    """What took too long, and is wrong in no other way."""


class HostileTest(unittest.TestCase):
    def _callTestMethod(self, method):
        """Once more where it was late: other programs may have had the processors for a second. A server that is late by itself
        is late again."""
        try:
            super()._callTestMethod(method)
        except Late as late:
            print(f"\nagain: {late}", flush=True)
            self.doCleanups()
            self.setUp()
            super()._callTestMethod(method)

    def setUp(self):
        self.folder = serving.temporary_folder("hostile")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self._servers = 0

    def server(self, flags=None, **options):
        self._servers += 1
        server = serving.Server(flags, log=self.folder / f"server-{self._servers}.log", **options)
        self.addCleanup(server.stop)
        return server

    def sessions(self, server, tenant="owner"):
        client = SessionClient(server.grpc, tenant)
        self.addCleanup(client.close)
        return client

    def beside(self, server):
        """A neighbour that is measured from now on."""
        beside = Beside({"grpc": server.ready["listen"], "http": server.ready["http"], "metrics": server.ready["metrics"]})
        beside.start()
        self.addCleanup(beside.stop)
        return beside

    def assert_unharmed(self, beside):
        told = beside.stop()
        self.assertTrue(told, "the neighbour did not end")
        self.assertEqual(told["errors"], [])
        self.assertEqual(REFERENCE.differences(told["streams"]), [])
        self.assert_in_time(told, "token", "first")

    def assert_in_time(self, told, *names):
        """Late unless the gaps of a neighbour are short enough."""
        for name in names:
            if told["gaps"][name] > LONGEST_GAP:
                raise Late(f"{name}: {told['gaps'][name]:.2f} s, at most {LONGEST_GAP:.0f}")

    def assert_serving(self, server):
        self.assertTrue(server.alive(), f"status {server.process.poll()}: {server.log()[-2000:]}")
        self.assertEqual(server.serving(), "SERVING")
        self.assertEqual(server.healthz(), 200)

    def assert_says_no_path(self, client, *paths):
        """Errors name nothing of the machine."""
        for call, status, message in client.spoken:
            for path in (*paths, "/tmp", str(serving.ROOT)):
                self.assertNotIn(str(path), message, f"{call}: {status}")
