"""What the tests of this folder share: a folder, servers, a neighbour, and whether the counts are full."""

import os
import pathlib
import shutil
import tempfile
import unittest

import serving
from beside import REFERENCE, Beside
from sessions import SessionClient

FULL = os.environ.get("POLYSKETCH_TEST_FULL") == "1"
LONGEST_GAP = 1.0


class HostileTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="hostile-"))
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
        for name in ("token", "first"):
            self.assertLessEqual(told["gaps"][name], LONGEST_GAP, name)

    def assert_serving(self, server):
        self.assertTrue(server.alive(), f"status {server.process.poll()}: {server.log()[-2000:]}")
        self.assertEqual(server.serving(), "SERVING")
        self.assertEqual(server.healthz(), 200)

    def assert_says_no_path(self, client, *paths):
        """Errors name nothing of the machine."""
        for call, status, message in client.spoken:
            for path in (*paths, "/tmp", str(serving.ROOT)):
                self.assertNotIn(str(path), message, f"{call}: {status}")
