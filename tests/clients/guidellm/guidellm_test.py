"""guidellm, which measures servers: every request of each API succeeds, with as many tokens as it asked for."""

import json
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "openai"))
from measured_server import REQUESTS, TOKENS, MeasuredServerTest  # noqa: E402
from server_process import ROOT  # noqa: E402

GUIDELLM = pathlib.Path(sys.executable).parent / "guidellm"


class GuideLlm(MeasuredServerTest):
    def measure(self, **backend):
        """The report of one benchmark."""
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.json"
            # Streams ask for vLLM's usage at each event, and requests with a length for ignore_eos.
            options = {
                "backend": {"kind": "openai_http", "target": f"http://{self.server.http}", "model": "demo", **backend},
                "profile": {"kind": "concurrent", "streams": [4]},
                "constraint": {"kind": "max_requests", "count": REQUESTS},
                "tokenizer": {"kind": "huggingface_auto", "model": str(ROOT / "models/demo")},
                "data": {"kind": "synthetic_text", "prompt_tokens": 40, "output_tokens": TOKENS},
                "output": {"kind": "json", "path": str(report)},
            }
            line = [GUIDELLM, "run", "--disable-console"]
            line += [part for name, value in options.items() for part in (f"--{name}", json.dumps(value))]
            home = os.environ | {"HF_HOME": folder, "HF_HUB_OFFLINE": "1"}
            self.run_program(line, env=home, cwd=folder)
            (benchmark,) = json.loads(report.read_text())["benchmarks"]
            return benchmark

    def test_no_request_fails(self):
        for api, stream in (
            ("/v1/chat/completions", True),
            ("/v1/chat/completions", False),
            ("/v1/completions", True),
            ("/v1/responses", True),
        ):
            with self.subTest(api, stream=stream), self.makes_all_tokens():
                totals = self.measure(request_format=api, stream=stream)["metrics"]["request_totals"]
                self.assertEqual(totals, {"successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS})


if __name__ == "__main__":
    unittest.main()
