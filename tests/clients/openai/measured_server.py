"""The server while a program of another project measures it."""

import contextlib
import subprocess
import unittest

from server_process import TOOL_TEMPLATE, Server

REQUESTS = 20
TOKENS = 16  # of a request


class MeasuredServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--chat-template", TOOL_TEMPLATE)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def run_program(self, line, **options):
        """Fails with the program's output."""
        done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, **options)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:])

    @contextlib.contextmanager
    def makes_all_tokens(self):
        before = self.server.metric("polysketch_generation_tokens_total")
        yield
        made = self.server.metric("polysketch_generation_tokens_total") - before
        self.assertEqual(made, REQUESTS * TOKENS)
