"""The examples of clients/python, as programs, and the snippets of docs/python-client.md, with the real server."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from support import ROOT, Server, wait_until

import polysketch

EXAMPLES = ROOT / "clients/python/examples"


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = []
        for _ in range(2):
            cls.servers.append(Server())
            cls.addClassCleanup(cls.servers[-1].stop)

    def start(self, name, *arguments, **options):
        return subprocess.Popen([sys.executable, EXAMPLES / name, *arguments], text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env=os.environ | {"POLYSKETCH_SERVER": self.servers[0].target})

    def output(self, name, *arguments):
        process = self.start(name, *arguments)
        out, error = process.communicate()
        self.assertEqual(process.returncode, 0, error)
        return out, error

    def test_streaming(self):
        out, error = self.output("streaming.py", "It was late", "12")
        self.assertRegex(error, r"^(length|stop), seed \d+, \d+ tokens/s\n$")
        seed = int(error.split()[2].rstrip(","))
        with polysketch.Client(self.servers[0].target) as client:
            want = client.complete("It was late", max_tokens=12, temperature=0.7, seed=seed).result()
        self.assertEqual(out, want.text + "\n")

    def test_streaming_stops_at_an_interrupt(self):
        process = self.start("streaming.py", "It was late", "1000000")
        running = "polysketch_num_requests_running"
        wait_until(lambda: self.servers[0].metric(running) == 1, "the request")
        process.send_signal(2)
        process.communicate()
        wait_until(lambda: self.servers[0].metric(running) == 0, "the slot")

    def test_fork(self):
        out, _ = self.output("fork.py", "It was late", "4")
        first, *ways = out.splitlines()
        self.assertEqual(first, "4 tokens, 4 ways:")
        self.assertEqual(len(set(ways)), 4)
        with polysketch.Client(self.servers[0].target) as client:
            self.assertEqual(client.sessions(), [])
            for seed, way in enumerate(ways):
                want = client.complete("It was late", max_tokens=20, temperature=0.8, seed=seed).result()
                self.assertEqual(way, f"- {'It was late' + want.text!r}")

    def test_score_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            texts = {f"{page}.txt": (ROOT / f"docs/{page}.md").read_text() for page in ("glossary", "gpu", "numerics")}
            for name, text in texts.items():
                (pathlib.Path(folder) / name).write_text(text)
            out, _ = self.output("score_folder.py", folder, ",".join(server.target for server in self.servers))
        scores = [server.metric('polysketch_rpcs_total{code="OK",rpc="Score"}') for server in self.servers]
        self.assertEqual(sorted(scores), [1, 2])
        *lines, total = out.splitlines()
        self.assertEqual([line.split()[-1] for line in lines], sorted(texts))
        with polysketch.Client(self.servers[0].target) as client:
            for line in lines:
                value, tokens, _, name = line.split()
                want = client.score(texts[name])
                self.assertEqual((value, tokens), (f"{want.perplexity:.4f}", str(want.tokens)))
        self.assertEqual(total.split()[1:], [str(sum(int(line.split()[1]) for line in lines)), "tokens", "all"])

    def test_snippets_of_the_documentation(self):
        server = Server("--http-listen=0", "--chat-template=plain")
        self.addCleanup(server.stop)
        page = (ROOT / "docs/python-client.md").read_text(encoding="utf-8")
        code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
        code = code.replace('"127.0.0.1:50051"', f'"{server.target}", http="{server.http}"')
        done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("sampling.top_p: expected a number in (0, 1], found 1.5\n", done.stdout)
        with polysketch.Client(server.target) as client:
            self.assertEqual(client.snapshots(), [])


if __name__ == "__main__":
    unittest.main()
