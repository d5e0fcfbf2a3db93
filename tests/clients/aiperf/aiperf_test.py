"""NVIDIA's aiperf, which measures servers: every request of each API succeeds, with as many tokens as it asked for."""

import json
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "openai"))
from measured_server import REQUESTS, TOKENS, MeasuredServerTest  # noqa: E402
from server_process import ROOT  # noqa: E402

AIPERF = pathlib.Path(sys.executable).parent / "aiperf"


class AiPerf(MeasuredServerTest):
    def profile(self, *options):
        with tempfile.TemporaryDirectory() as folder:
            line = [AIPERF, "profile", "--model", "demo", "--url", self.server.http, "--tokenizer", ROOT / "models/demo"]
            line += ["--request-count", str(REQUESTS), "--concurrency", "4", "--isl", "40", "--osl", str(TOKENS)]
            line += ["--extra-inputs", "ignore_eos:true", "--ui", "none", "--artifact-dir", folder, *options]
            home = os.environ | {"HF_HOME": folder}
            # With HF_HUB_OFFLINE it refuses tokenizers that are folders.
            home.pop("HF_HUB_OFFLINE", None)
            self.run_program(line, env=home)
            return json.loads((pathlib.Path(folder) / "profile_export_aiperf.json").read_text())

    def test_no_request_fails(self):
        for api in (["chat", "--streaming"], ["chat"], ["completions", "--streaming"]):
            with self.subTest(api), self.makes_all_tokens():
                report = self.profile("--endpoint-type", *api)
                self.assertEqual(report["error_summary"], [])
                self.assertEqual(report["request_count"]["avg"], REQUESTS)


if __name__ == "__main__":
    unittest.main()
