"""vLLM's router before two replicas, over HTTP: answers equal those of a replica, and both replicas get requests."""

import json
import pathlib
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "openai"))
from server_process import TOOL_TEMPLATE, Proxy, Server, free_port  # noqa: E402

ROUTER = pathlib.Path(sys.executable).parent / "vllm-router"
COMPLETION = {"model": "demo", "prompt": "It was late in the afternoon", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 24, "temperature": 0, "ignore_eos": True}
PARAMETERS = {"type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"], "additionalProperties": False}


def post(url, path, body):
    """The status and the bytes of the answer."""
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


class VllmRouter(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.replicas = []
        for _ in range(2):
            cls.replicas.append(Server("--chat-template", TOOL_TEMPLATE))
            cls.addClassCleanup(cls.replicas[-1].stop)
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        port = free_port()
        cls.url = f"http://127.0.0.1:{port}/v1"
        command = [ROUTER, "--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"]
        command += ["--worker-urls", *(f"http://{replica.http}" for replica in cls.replicas)]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()), "--log-level", "warning"]
        router = Proxy(command, folder.name)
        cls.addClassCleanup(router.stop)
        router.wait(lambda: post(cls.url, "/completions", COMPLETION | {"max_tokens": 1})[0] == 200)

    def both(self, path, body):
        """The answers of the router and of a replica."""
        answers = [post(url, path, body) for url in (self.url, self.replicas[0].url)]
        self.assertEqual([status for status, _ in answers], [200, 200], answers)
        return [text for _, text in answers]

    def test_answers_equal_those_of_a_replica(self):
        got, want = [json.loads(text) for text in self.both("/completions", COMPLETION)]
        self.assertEqual(got["choices"], want["choices"])
        self.assertEqual(got["usage"]["completion_tokens"], 24)
        got, want = [json.loads(text) for text in self.both("/chat/completions", CHAT)]
        self.assertEqual(got["choices"], want["choices"])

    def test_stream(self):
        texts = []
        for answer in self.both("/chat/completions", CHAT | {"stream": True}):
            events = [line[6:] for line in answer.decode().splitlines() if line.startswith("data: ")]
            self.assertEqual(events.pop(), "[DONE]")
            texts.append("".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events))
        self.assertTrue(texts[0])
        self.assertEqual(texts[0], texts[1])

    def test_tools(self):
        tool = {"type": "function", "function": {"name": "tell", "parameters": PARAMETERS}}
        asked = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "ignore_eos": False, "max_tokens": 100}
        for answer in self.both("/chat/completions", CHAT | asked):
            (call,) = json.loads(answer)["choices"][0]["message"]["tool_calls"]
            self.assertIn(json.loads(call["function"]["arguments"])["sunny"], (True, False))

    def test_both_replicas_get_requests(self):
        before = [replica.metric("polysketch_generation_tokens_total") for replica in self.replicas]
        for _ in range(4):
            self.assertEqual(post(self.url, "/completions", COMPLETION)[0], 200)
        after = [replica.metric("polysketch_generation_tokens_total") for replica in self.replicas]
        self.assertEqual([b - a for a, b in zip(before, after, strict=True)], [48, 48])

    def test_errors_pass(self):
        status, text = post(self.url, "/completions", COMPLETION | {"top_p": 2})
        self.assertEqual(status, 400)
        self.assertIn(b"top_p", text)


if __name__ == "__main__":
    unittest.main()
