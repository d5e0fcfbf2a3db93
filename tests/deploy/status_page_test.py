"""--http-listen: probes, the status page's data, the playground, and the page itself in headless Chromium."""

import hashlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import chromium
from support import BIN, DeployTest, http_get, wait_until

PROMPT = "It was late in the afternoon"
SCREENSHOTS = pathlib.Path(os.environ.get("SCREENSHOTS", BIN.parent / "artefacts"))


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

    def post(self, path, request, headers=None):
        return self.ask("POST", path, json.dumps(request), {"Content-Type": "application/json"} | (headers or {}))

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
        for path in ("/", "/status.js", "/playground.js", "/status.css", "/favicon.ico", "/healthz", "/readyz"):
            answer = self.ask("GET", path)
            self.assertEqual(answer.status, 200, path)
            self.assertIn("default-src 'self'", answer.headers["Content-Security-Policy"])
        for path in ("/index.html", "/status.j", "/../../etc/passwd", "/metric", "/api"):
            self.assertEqual(self.ask("GET", path).status, 404, path)
        self.assertEqual(self.ask("POST", "/").status, 405)
        self.assertEqual(self.ask("GET", "/api/sessions/list").status, 405)
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

    def test_bad_requests_are_named(self):
        self.start_page()
        for status, name, request, headers, words in [
            (400, "list", {"sesion": ""}, {}, "sesion"),
            (400, "list", [1], {}, "expected a JSON object"),
            (404, "fork", {"session": "0" * 32}, {}, "session"),
            (400, "list", {}, {"Content-Type": "text/plain"}, "application/json"),
            (403, "list", {}, {"Origin": "http://elsewhere.example"}, "Origin"),
            (413, "fork", {"session": "x" * (1 << 20)}, {}, "at most"),
        ]:
            answer = self.post("/api/sessions/" + name, request, headers)
            self.assertEqual(answer.status, status, words)
            self.assertIn(words, json.loads(answer.read())["error"]["message"])
        self.assertEqual(self.post("/api/sessions/list", {}, {"Origin": f"http://{self.address}"}).status, 200)

    def test_a_drain_is_not_ready_and_ends_streams_whole(self):
        self.start_page()
        request = {"prompt": PROMPT, "max_tokens": 4000, "stream": True, "stream_options": {"include_usage": True}}
        answer = self.post("/v1/completions", request)
        answer.readline()  # it runs
        self.process.send_signal(signal.SIGTERM)
        wait_until(lambda: self.ask("GET", "/readyz").status == 503, "not ready")
        self.assertEqual(self.ask("GET", "/healthz").status, 200)
        self.assertEqual(self.post("/v1/completions", request).status, 503)
        *_, last, done = [line for line in answer.read().splitlines() if line]
        self.assertEqual(done, b"data: [DONE]")
        self.assertEqual(json.loads(last.removeprefix(b"data: "))["usage"]["completion_tokens"], 4000)
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
        page = self.open_in_browser()
        tiles = "document.getElementById('tiles').textContent"
        self.assertIn("demo", page.evaluate(tiles))
        self.assertIn("learned_sketch_mixed", page.evaluate(tiles))
        self.assertIn("between tokens, p99", self.text_of(page, "now"))
        page.evaluate("document.getElementById('plots').open = true")
        # Plots move: each has points, and more of them later.
        count = "Math.min(...[...document.querySelectorAll('canvas')].map((c) => Number(c.dataset.points)))"
        first = wait_until(lambda: page.evaluate(count), "points in every plot")
        wait_until(lambda: page.evaluate(count) > first, "more points")
        # The playground streams.
        page.evaluate("document.getElementById('create').click()")
        wait_until(lambda: "is empty" in self.text_of(page, "finish"), "a session")
        page.evaluate("document.getElementById('temperature').value = 0; document.getElementById('run').click()")
        wait_until(lambda: len(self.text_of(page, "output")) > 60, "text")
        wait_until(lambda: "tokens after" in self.text_of(page, "finish"), "the end of a completion")
        self.assertRegex(self.text_of(page, "finish"), r"^120 tokens after a prompt of \d+, first after")
        self.look(page)
        # Nothing was refused by the policy or not found, and nothing was asked of another server.
        sources = page.evaluate("performance.getEntriesByType('resource').map((entry) => new URL(entry.name).host)")
        self.assertEqual(set(sources), {self.address})
        answers = [event["params"]["response"] for event in page.events if event["method"] == "Network.responseReceived"]
        self.assertGreater(len(answers), 5)
        self.assertEqual([answer["url"] for answer in answers if answer["status"] >= 400], [])
        blocked = [event for event in page.events if event["params"].get("blockedReason")]
        self.assertEqual(blocked, [])

    def open_in_browser(self, state="ready"):
        # Processes of a killed Chromium may still write there.
        profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(profile.cleanup)
        page = chromium.Page(profile.name)
        self.addCleanup(page.close)
        page.call("Page.enable")
        page.call("Network.enable")
        page.resize(1240, 1500)
        page.prefer("light")
        page.call("Page.navigate", url=f"http://{self.address}/")
        wait_until(lambda: page.evaluate("document.getElementById('state')?.textContent") == state, "the page")
        return page

    def text_of(self, page, element):
        return page.evaluate(f"document.getElementById('{element}').textContent")

    def look(self, page):
        """Leaves screenshots, and checks that no width of a window scrolls sideways."""
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        low = (
            "JSON.stringify([...document.querySelectorAll('button, input, select, textarea, summary')].map((e) => "
            "e.type === 'checkbox' ? e.parentElement : e).filter((e) => e.offsetParent && e.offsetHeight < 44).map((e) => e.id))"
        )
        shapes = [("light", "light", 1280), ("dark", "dark", 1280), ("narrow", "light", 420), ("narrow-dark", "dark", 420)]
        for name, scheme, width in shapes:
            page.prefer(scheme)
            page.resize(width, 900)
            page.call("Emulation.setTouchEmulationEnabled", enabled=width < 600)
            points = page.evaluate("document.querySelector('canvas').dataset.points")
            drawn = f"document.querySelector('canvas').dataset.points !== '{points}'"
            wait_until(lambda: page.evaluate(drawn), "the plots in this form")
            self.assertLessEqual(page.evaluate(overflow), 0, name)
            if width < 600:
                self.assertEqual(page.evaluate(low), "[]", "controls too low for a finger")
            path = SCREENSHOTS / f"status-{name}.png"
            page.screenshot(path)
            self.assertTrue(path.read_bytes().startswith(b"\x89PNG"))
        page.prefer("light")
        page.resize(1240, 1500)
        page.call("Emulation.setTouchEmulationEnabled", enabled=False)

    @unittest.skipUnless(chromium.program(), "no Chromium")
    def test_a_chat_in_a_browser(self):
        self.start_page("--chat-template", "plain", "--served-model-name", "novelist")
        page = self.open_in_browser()
        output = lambda: self.text_of(page, "output")
        click = lambda name: page.evaluate(f"document.getElementById('{name}').click()")
        wait_until(lambda: page.evaluate("document.getElementById('chat').checked"), "the offer to chat")
        page.evaluate(
            "document.getElementById('tokens').value = 8; document.getElementById('prompt').value = \"It's \\\\ a day\";"
            "document.getElementById('prompt').focus()"
        )
        page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", windowsVirtualKeyCode=13)
        wait_until(lambda: "tokens after" in self.text_of(page, "finish"), "an answer")
        first = output()
        self.assertTrue(first.startswith("It's \\ a day") and len(first) > len("It's \\ a day"), first)
        # Another answer to the same question stands beside the first one, which comes back.
        click("regenerate")
        wait_until(lambda: "2 of 2" in output() and "tokens after" in self.text_of(page, "finish"), "another answer")
        page.evaluate("document.querySelector('.versions button').click()")
        self.assertEqual(output().replace("‹1 of 2›", ""), first)
        # Both forms of the last request are answered.
        for language, program in (("curl", ["bash", "-c"]), ("python", [sys.executable, "-c"])):
            click(language)
            code = page.evaluate("document.getElementById('code').value")
            answer = subprocess.run([*program, code], capture_output=True, text=True)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            self.assertTrue(answer.stdout.rstrip().endswith("data: [DONE]"), answer.stdout)

    @unittest.skipUnless(chromium.program(), "no Chromium")
    def test_a_page_that_is_not_answered_looks_old(self):
        self.start_page()
        page = self.open_in_browser()
        wait_until(lambda: "0 of" in self.text_of(page, "now"), "numbers")
        self.process.kill()
        self.process.wait()
        wait_until(lambda: self.text_of(page, "state") == "no answer", "the end of the server")
        wait_until(lambda: page.evaluate("document.body.className") == "stale", "an old page")
        self.assertRegex(self.text_of(page, "since"), r"^numbers of .*, \d+ s ago$")

    @unittest.skipUnless(chromium.program(), "no Chromium")
    def test_the_page_asks_for_a_key(self):
        keys = self.dir / "keys.jsonl"
        keys.write_text(json.dumps({"name": "a", "sha256": hashlib.sha256(b"secret").hexdigest(), "tenant": "a"}))
        self.start_page("--api-keys", str(keys))
        page = self.open_in_browser("needs an API key")
        page.evaluate(
            "document.getElementById('key').value = 'secret'; document.getElementById('key_form').requestSubmit()"
        )
        wait_until(lambda: self.text_of(page, "state") == "ready", "the key to work")
        self.assertTrue(page.evaluate("document.getElementById('key_form').hidden"))

    def session_call(self, name, request):
        answer = self.post("/api/sessions/" + name, request)
        self.assertEqual(answer.status, 200, name)
        return json.loads(answer.read())

    @unittest.skipUnless(chromium.program(), "no Chromium")
    def test_sessions_in_a_browser(self):
        self.start_page()
        page = self.open_in_browser()
        finish = lambda: self.text_of(page, "finish")
        tile = lambda name: page.evaluate(
            "[...document.querySelectorAll('.tile')].find((t) => t.firstChild.textContent === "
            f"'{name}')?.lastChild.textContent"
        )

        def click(name, says):
            page.evaluate(f"document.getElementById('{name}').click()")
            wait_until(lambda: says in finish(), f"{name}: {says}")

        def complete(prompt):
            page.evaluate(
                "document.getElementById('temperature').value = 0; document.getElementById('tokens').value = 20;"
                f"document.getElementById('prompt').value = '{prompt}'; document.getElementById('finish').textContent = ''"
            )
            click("run", "20 tokens after")
            wait_until(lambda: page.evaluate("!document.getElementById('run').disabled"), "the end")

        self.assertEqual(tile("memory of states"), "0 bytes")
        self.assertEqual(tile("state store"), "none")
        click("create", "is empty")
        complete(PROMPT)
        text = self.text_of(page, "output")
        self.assertTrue(text.startswith(PROMPT))
        # The session goes on where it was, without a prompt; so do its fork and its snapshot.
        click("fork", "is a fork of")
        click("snapshot", "holds session")
        complete("")
        longer = self.text_of(page, "output")
        self.assertTrue(longer.startswith(text) and len(longer) > len(text))
        click("restore", "continues snapshot")
        self.assertEqual(self.text_of(page, "output"), text)
        complete("")
        self.assertEqual(self.text_of(page, "output"), longer)
        # States of sessions that rest are memory of states.
        listed = self.session_call("list", {})
        self.assertEqual((len(listed["sessions"]), len(listed["snapshots"])), (3, 1))
        wait_until(lambda: self.metric("polysketch_num_requests_running") == 0, "the end of all requests")
        used = sum(
            self.metric(f"polysketch_{name}_bytes")
            for name in ("slot_memory", "preempted_memory", "session_memory", "prefix_cache")
        )
        self.assertGreater(used, 0)
        size = "{:,.1f}".format(used / 2**20).removesuffix(".0") + " MiB"
        if used < 2**20:
            size = "{:,.1f}".format(used / 2**10) if used < 10 * 2**10 else "{:,.0f}".format(used / 2**10)
            size = size.removesuffix(".0") + " KiB"
        wait_until(lambda: tile("memory of states") == size, f"{size} in {tile('memory of states')}")
        self.assertRegex(tile("sessions"), r"^4, ")
        click("delete", "is deleted")
        self.assertEqual(len(self.session_call("list", {})["sessions"]), 2)
        # An error of the server is shown.
        click("create", "is empty")
        self.session_call("delete", {"session": page.evaluate("document.getElementById('session').value")})
        click("run", "NOT_FOUND: ")
        self.assertEqual(self.text_of(page, "output"), "")


if __name__ == "__main__":
    unittest.main()
