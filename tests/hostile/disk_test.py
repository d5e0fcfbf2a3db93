"""A store folder on a disk that is full, read-only, slow, failing or gone: errors and never an end of the server, no session
lost that was acknowledged, and a neighbour that notices nothing."""

import errno
import os
import shutil
import signal
import unittest

import case
import messages
from faults import Faults

ENOSPC, EIO, EROFS, EMFILE = errno.ENOSPC, errno.EIO, errno.EROFS, errno.EMFILE
# What a call may end with while its disk fails.
ERRORS = {"UNAVAILABLE", "RESOURCE_EXHAUSTED", "DATA_LOSS", "ABORTED"}


class Disk(case.HostileTest):
    def start(self, **more):
        self.store = self.folder / "states"
        self.store.mkdir(exist_ok=True)
        self.faults = Faults(self.store, self.folder / "control")
        # Memory for no session: each call reads and writes the store.
        self.flags = {"state-store": f"dir:{self.store}", "session-memory": 1, **more}
        return self.server(self.flags, environment=self.faults.environment)

    def use(self, client, session):
        """Every kind of use of the store; the statuses."""
        statuses = {"create": client.create()[0], "append": client.append(session, "It was late")}
        statuses["list"] = client.listed()[0]
        statuses["snapshot"] = client.unary("SnapshotSession", messages.field(1, session))[0]
        extra_status, extra = client.create()
        if extra_status == "OK":
            statuses["delete"] = client.unary("DeleteSession", messages.field(1, extra))[0]
            if statuses["delete"] == "OK":
                del client.acknowledged[extra]
        return statuses

    def fault(self, call, statuses=ERRORS, flags=None, **fault):
        """A fault of one call, for ever and then never. `statuses`: what the calls of the client may end with, besides OK."""
        server = self.start(**(flags or {}))
        client = self.sessions(server)
        _, session = client.create()
        self.assertEqual(client.append(session, "It was a fine morning"), "OK")
        beside = self.beside(server)
        self.faults.set(call, **fault)
        for _ in range(8 if case.FULL else 2):
            for name, status in self.use(client, session).items():
                self.assertIn(status, statuses | {"OK"}, f"{name}: {client.spoken[-1:]}")
        self.assertGreater(self.faults.happened(call), 0, "the fault never happened")
        self.assert_says_no_path(client, self.store)
        self.faults.clear()
        self.assert_serving(server)
        self.assert_unharmed(beside)
        # A replica sees what the server sees.
        replica = self.server(self.flags)
        self.assertEqual(self.sessions(replica).listed(), client.listed())
        replica.stop()
        self.assertEqual(client.lost(), [])
        # What was acknowledged is on the disk: the server gets no time to write anything.
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        client.connect(self.server(self.flags).grpc)
        self.assertEqual(client.lost(), [])

    def test_full_when_it_writes(self):
        self.fault("write", error=ENOSPC)

    def test_fails_when_it_writes_now_and_then(self):
        self.fault("write", error=EIO, every=3)

    def test_writes_a_part(self):
        self.fault("write", statuses=set(), shorten=1000)

    def test_fails_when_it_syncs(self):
        self.fault("fsync", error=EIO)

    def test_fails_when_it_syncs_now_and_then(self):
        self.fault("fsync", error=EIO, every=2)

    def test_fails_when_it_renames(self):
        self.fault("rename", error=EROFS)

    def test_is_read_only(self):
        self.fault("open", error=EROFS, every=2)

    def test_has_no_descriptors(self):
        self.fault("open", error=EMFILE)

    def test_fails_when_it_lists(self):
        self.fault("readdir", error=EIO)

    def test_fails_when_it_lists_now_and_then(self):
        self.fault("readdir", error=EIO, every=3)

    def test_fails_when_its_files_are_counted(self):
        """A store that is almost full counts its files."""
        self.fault("readdir", flags={"state-store-limit": "6MiB"}, error=EIO)

    def test_fails_when_it_lists_at_the_start(self):
        server = self.start()
        client = self.sessions(server)
        for _ in range(3):
            client.create()
        server.stop()
        for every in range(1, 9) if case.FULL else (1, 3, 4, 6):  # in any folder, at any of its names
            self.faults.set("readdir", error=EIO, every=every)
            try:
                server = self.server(self.flags, environment=self.faults.environment)
            except AssertionError as error:  # it may refuse to start, and says so
                self.assertIn("status 1,", str(error))
            else:
                self.assert_serving(server)
                server.stop()
            self.assertGreater(self.faults.happened("readdir"), 0, "the fault never happened")

    def test_fails_when_it_reads(self):
        self.fault("pread", error=EIO)

    def test_reads_a_part(self):
        self.fault("pread", statuses=set(), shorten=1000)

    def test_cannot_delete(self):
        self.fault("unlink", error=EROFS)

    def test_is_slow(self):
        self.fault("fsync", statuses=set(), delay_ms=100)

    def test_is_gone(self):
        server = self.start()
        client = self.sessions(server)
        _, session = client.create()
        self.assertEqual(client.append(session, "It was a fine morning"), "OK")
        beside = self.beside(server)
        away = self.folder / "away"
        os.rename(self.store, away)
        for name, status in self.use(client, session).items():
            self.assertIn(status, ERRORS | {"NOT_FOUND", "OK"}, f"{name}: {client.spoken[-1:]}")
        self.assertNotEqual(client.create()[0], "OK", "a durable session without a folder")
        self.assert_says_no_path(client, self.store)
        shutil.rmtree(self.store, ignore_errors=True)
        os.rename(away, self.store)
        self.assert_serving(server)
        self.assert_unharmed(beside)
        self.assertEqual(client.lost(), [])

    def test_a_start_without_a_store_says_so(self):
        self.store = self.folder / "states"
        self.store.write_text("not a folder")
        with self.assertRaisesRegex(AssertionError, "expected a folder that can be written"):
            self.server({"state-store": f"dir:{self.store}"})


if __name__ == "__main__":
    unittest.main()
