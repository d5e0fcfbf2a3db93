"""NVIDIA's aiperf, which measures servers: every request of each API succeeds, with as many tokens as it asked for."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "openai"))
from server_process import ROOT, TOOL_TEMPLATE, Server  # noqa: E402

AIPERF = pathlib.Path(sys.executable).parent / "aiperf"
REQUESTS = 20
TOKENS = 16


class AiPerf(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--chat-template", TOOL_TEMPLATE)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def profile(self, *options):
        with tempfile.TemporaryDirectory() as folder:
            line = [AIPERF, "profile", "--model", "demo", "--url", self.server.http, "--tokenizer", ROOT / "models/demo"]
            line += ["--request-count", str(REQUESTS), "--concurrency", "4", "--isl", "40", "--osl", str(TOKENS)]
            line += ["--extra-inputs", "ignore_eos:true", "--ui", "none", "--artifact-dir", folder, *options]
            home = os.environ | {"HF_HOME": folder}
            # With HF_HUB_OFFLINE it refuses tokenizers that are folders.
            home.pop("HF_HUB_OFFLINE", None)
            done = subprocess.run(line, env=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stdout[-4000:])
            return json.loads((pathlib.Path(folder) / "profile_export_aiperf.json").read_text())

    def test_no_request_fails(self):
        for api in (["chat", "--streaming"], ["chat"], ["completions", "--streaming"]):
            with self.subTest(api):
                before = self.server.metric("polysketch_generation_tokens_total")
                report = self.profile("--endpoint-type", *api)
                self.assertEqual(report["error_summary"], [])
                self.assertEqual(report["request_count"]["avg"], REQUESTS)
                made = self.server.metric("polysketch_generation_tokens_total") - before
                self.assertEqual(made, REQUESTS * TOKENS)


if __name__ == "__main__":
    unittest.main()
