"""--http-listen: probes, the status page's data, the playground, and the page itself in headless Chromium."""

import http.client
import json
import os
import pathlib
import signal
import subprocess
import threading
import unittest

import chromium
from support import BIN, DeployTest, http_get, wait_until

PROMPT = "It was late in the afternoon"
SCREENSHOT = pathlib.Path(os.environ.get("POLYSKETCH_SCREENSHOT", BIN.parent / "artefacts/status-page.png"))


class StatusPage(DeployTest):
    def start_page(self, *flags):
        self.process, ready = self.start_server("--http-listen", "127.0.0.1:0", *flags)
        self.address, self.grpc = ready["http"], ready["listen"]
        return ready

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection(self.address, timeout=60)
        self.addCleanup(connection.close)
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        answer.connection = connection
        return answer

    def complete(self, request, headers=None):
        headers = {"Content-Type": "application/json"} | (headers or {})
        return self.ask("POST", "/api/complete", json.dumps(request), headers)

    def metric(self, name):
        return json.loads(self.ask("GET", "/api/status").read())["metrics"][name][0]["value"]

    def test_can_be_off_and_is_never_at_the_metrics_port(self):
        _, ready = self.start_server()
        self.assertIsNone(ready["http"])
        host, port = ready["metrics"].split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        self.addCleanup(connection.close)
        connection.request("GET", "/api/status")
        self.assertEqual(connection.getresponse().status, 404)

    def test_answers(self):
        ready = self.start_page()
        for path, status in {"/": 200, "/status.js": 200, "/status.css": 200, "/healthz": 200, "/readyz": 200}.items():
            answer = self.ask("GET", path)
            self.assertEqual(answer.status, status, path)
            self.assertIn("default-src 'self'", answer.headers["Content-Security-Policy"])
        for path in ("/index.html", "/status.j", "/../../etc/passwd", "/metrics", "/api"):
            self.assertEqual(self.ask("GET", path).status, 404, path)
        self.assertEqual(self.ask("POST", "/").status, 405)
        self.assertEqual(self.ask("GET", "/api/complete").status, 405)
        status = json.loads(self.ask("GET", "/api/status").read())
        self.assertTrue(status["ready"])
        self.assertEqual(status["model"]["name"], "demo")
        # The page shows what /metrics says.
        scraped = {
            line.split(" ")[2]
            for line in http_get(f"http://{ready['metrics']}/metrics").splitlines()
            if line.startswith("# TYPE polysketch_")
        }
        self.assertEqual(scraped, {name for name in status["metrics"] if name.startswith("polysketch_")})

    def test_the_playground_says_what_the_client_gets(self):
        self.start_page()
        sampling = {"temperature": 0.8, "seed": "5"}
        answer = self.complete({"prompt": {"text": PROMPT}, "max_tokens": 40, "sampling": sampling})
        self.assertEqual(answer.status, 200)
        messages = [json.loads(line) for line in answer.read().splitlines() if line]
        text = "".join(m.get("delta", {}).get("text", "") for m in messages) + messages[-1]["finish"].get("text", "")
        client = subprocess.run(
            [BIN / "polysketch", "--server", self.grpc, "complete", "--prompt", PROMPT, "--json"]
            + ["--max-tokens", "40", "--temperature", "0.8", "--seed", "5"],
            capture_output=True,
            check=True,
        )
        self.assertEqual(text, json.loads(client.stdout)["text"])
        self.assertEqual(messages[-1]["finish"]["usage"]["completion_tokens"], "40")

    def test_bad_requests_are_named(self):
        self.start_page()
        good = {"prompt": {"text": PROMPT}, "max_tokens": 1}
        for status, request, headers, words in [
            (400, good | {"sampling": {"top_p": 2}}, {}, "sampling.top_p"),
            (400, good | {"max_tokn": 1}, {}, "max_tokn"),
            (400, [1], {}, "CompleteRequest"),
            (400, good | {"session": "00"}, {}, "session"),
            (400, good, {"Content-Type": "text/plain"}, "application/json"),
            (403, good, {"Origin": "http://elsewhere.example"}, "Origin"),
            (400, {"prompt": {"text": "x" * (1 << 20)}}, {}, "at most"),
        ]:
            answer = self.complete(request, headers)
            self.assertEqual(answer.status, status, words)
            self.assertIn(words, json.loads(answer.read())["error"]["message"])
        self.assertEqual(self.complete(good, {"Origin": f"http://{self.address}"}).status, 200)

    def test_whoever_leaves_frees_the_slot_and_few_run_at_once(self):
        self.start_page()
        endless = {"prompt": {"text": PROMPT}, "max_tokens": 1000000}
        answers = [self.complete(endless) for _ in range(4)]
        self.assertEqual([answer.status for answer in answers], [200] * 4)
        wait_until(lambda: self.metric("polysketch_num_requests_running") == 4, "four to run")
        self.assertEqual(self.complete(endless).status, 429)
        for answer in answers:
            answer.close()
            answer.connection.close()
        wait_until(lambda: self.metric("polysketch_num_requests_running") == 0, "the slots")
        self.assertEqual(self.complete(endless | {"max_tokens": 1}).status, 200)

    def test_a_drain_is_not_ready_and_ends_streams_whole(self):
        self.start_page()
        answer = self.complete({"prompt": {"text": PROMPT}, "max_tokens": 4000})
        answer.readline()  # it runs
        self.process.send_signal(signal.SIGTERM)
        wait_until(lambda: self.ask("GET", "/readyz").status == 503, "not ready")
        self.assertEqual(self.ask("GET", "/healthz").status, 200)
        self.assertEqual(self.complete({"prompt": {"text": PROMPT}}).status, 503)
        last = [line for line in answer.read().splitlines() if line][-1]
        self.assertEqual(json.loads(last)["finish"]["usage"]["completion_tokens"], "4000")
        self.assertEqual(self.process.wait(), 0)

    @unittest.skipUnless(chromium.program(), "no Chromium")
    def test_in_a_browser(self):
        self.start_page()
        stop = threading.Event()

        def load():
            while not stop.is_set():
                subprocess.run(
                    [BIN / "polysketch-loadgen", "--server", self.grpc, "--quiet", "--concurrency", "6"]
                    + ["--requests", "24", "--output-tokens", "uniform:20:200", "--prompt-tokens", "uniform:5:100"],
                    stdout=subprocess.DEVNULL,
                    check=False,
                )

        thread = threading.Thread(target=load)
        thread.start()
        self.addCleanup(lambda: (stop.set(), thread.join()))
        page = chromium.Page(self.dir / "profile")
        self.addCleanup(page.close)
        page.call("Page.enable")
        page.call("Page.navigate", url=f"http://{self.address}/")

        wait_until(lambda: page.evaluate("document.getElementById('state')?.textContent") == "ready", "the page")
        tiles = "document.getElementById('tiles').textContent"
        self.assertIn("demo", page.evaluate(tiles))
        self.assertIn("learned_sketch_mixed", page.evaluate(tiles))
        # Plots move: each has points, and more of them later.
        count = "Math.min(...[...document.querySelectorAll('canvas')].map((c) => Number(c.dataset.points)))"
        first = wait_until(lambda: page.evaluate(count), "points in every plot")
        wait_until(lambda: page.evaluate(count) > first, "more points")
        # The playground streams.
        page.evaluate("document.getElementById('temperature').value = 0; document.getElementById('run').click()")
        output = "document.getElementById('output').textContent.length"
        wait_until(lambda: page.evaluate(output) > 60, "text")
        finish = "document.getElementById('finish').textContent"
        wait_until(lambda: page.evaluate(finish), "the end of a completion")
        self.assertRegex(page.evaluate(finish), r"^120 tokens after \d+, first after")
        page.screenshot(SCREENSHOT)
        self.assertTrue(SCREENSHOT.read_bytes().startswith(b"\x89PNG"))
        # Nothing was refused by the policy, and nothing was asked of anybody else.
        sources = page.evaluate("performance.getEntriesByType('resource').map((entry) => new URL(entry.name).host)")
        self.assertEqual(set(sources), {self.address})


if __name__ == "__main__":
    unittest.main()
