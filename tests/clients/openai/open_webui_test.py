"""The requests of open-webui, which needs PyTorch with CUDA to be installed: those that its source writes
(backend/open_webui/routers/openai.py, utils/payload.py, utils/middleware.py, utils/task.py at GitHub, read on 2026-11-27)."""

import http.client
import json
import unittest

from tool_server import MODEL, WEATHER, tool_server

HEADERS = {
    "Content-Type": "application/json",
    "Authorization": "Bearer none",
    "X-OpenWebUI-User-Name": "A%20Name",
    "X-OpenWebUI-User-Id": "1e0c6f5e",
    "X-OpenWebUI-User-Email": "name@example.org",
    "X-OpenWebUI-User-Role": "admin",
    "X-OpenWebUI-Chat-Id": "8f1b",
}
SYSTEM = {"role": "system", "content": "You help."}
USER = {"role": "user", "content": "What is the weather in Rome for 5 days?"}
# What a user may set for a model, and sends then to any server: names of OpenAI, and of Ollama.
PARAMETERS = {
    "temperature": 0.8,
    "top_p": 0.9,
    "min_p": 0.05,
    "top_k": 40,
    "max_tokens": 24,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "repeat_penalty": 1.1,
    "seed": 7,
    "stop": ["\n\n\n"],
    "logit_bias": {"5": 1},
    "reasoning_effort": "medium",
}
IGNORED = {"num_ctx": 2048, "num_batch": 512, "num_keep": 24, "num_thread": 2, "num_gpu": 1, "use_mmap": True}
IGNORED |= {"use_mlock": False, "keep_alive": "5m", "think": False}
# A model of ours needs a bound, and open-webui sets none by itself.
BOUND = {"max_tokens": 200}


class OpenWebUi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = tool_server()
        cls.addClassCleanup(cls.stop)

    @classmethod
    def stop(cls):
        assert cls.server.stop() == 0

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.server.http, timeout=600)
        self.addCleanup(connection.close)
        connection.request(method, f"/v1{path}", None if body is None else json.dumps(body), HEADERS)
        response = connection.getresponse()
        content = response.read().decode()
        self.assertEqual(response.status, 200, content)
        return response.headers["Content-Type"], content

    def ask(self, **body):
        kind, content = self.call("POST", "/chat/completions", {"model": MODEL, "stream": False, **BOUND, **body})
        self.assertEqual(kind, "application/json")
        return json.loads(content)["choices"][0]

    def stream(self, **body):
        """The deltas, joined as the middleware joins them; and the usage, which comes last."""
        more = {"stream": True, "stream_options": {"include_usage": True}}
        kind, content = self.call("POST", "/chat/completions", {"model": MODEL, **BOUND, **more, **body})
        self.assertIn("text/event-stream", kind)
        lines = [line.removeprefix("data: ") for line in content.splitlines() if line.startswith("data: ")]
        self.assertEqual(lines.pop(), "[DONE]")
        text, calls, usage = "", [], None
        for event in map(json.loads, lines):
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                delta = choice["delta"]
                text += delta.get("content") or ""
                for part in delta.get("tool_calls") or []:
                    if part["index"] == len(calls):
                        calls.append(part)
                    else:
                        calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
        self.assertGreater(usage["completion_tokens"], 0)
        return text, calls

    def test_models(self):
        _, content = self.call("GET", "/models")
        models = json.loads(content)
        self.assertEqual((models["object"], [model["id"] for model in models["data"]]), ("list", [MODEL]))

    def test_chat(self):
        text, calls = self.stream(messages=[SYSTEM, USER], **PARAMETERS)
        self.assertFalse(calls)
        history = [SYSTEM, USER, {"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]
        self.stream(messages=history, **PARAMETERS, **IGNORED)

    def test_parts(self):
        parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "the weather?"}]
        self.stream(messages=[{"role": "user", "content": parts}])

    def test_tasks(self):
        """Titles, tags and follow-up questions."""
        for limit in ({"max_completion_tokens": 1000}, {"max_tokens": 100}, {}):
            choice = self.ask(messages=[{"role": "user", "content": "### Task:\nGenerate a title."}], **BOUND | limit, stop=["e"])
            self.assertIn("content", choice["message"])

    def test_native_tools(self):
        tools = [{"type": "function", "function": {"name": "get_weather", "description": "", "parameters": WEATHER}}]
        _, calls = self.stream(messages=[SYSTEM, USER], tools=tools, tool_choice="required", parallel_tool_calls=False)
        (call,) = calls
        self.assertEqual(call["function"]["name"], "get_weather")
        # The middleware sends the calls with their index, and their results, and asks again.
        results = [
            {"role": "assistant", "content": "", "tool_calls": calls, "reasoning_content": ""},
            {"role": "tool", "tool_call_id": call["id"], "content": '{"weather": "sunny"}'},
        ]
        text, _ = self.stream(messages=[SYSTEM, USER, *results], tools=tools, max_tokens=16)
        self.assertTrue(text)

    def test_json(self):
        schema = {"name": "answer", "schema": WEATHER, "strict": True}
        choice = self.ask(messages=[USER], response_format={"type": "json_schema", "json_schema": schema})
        self.assertIn("days", json.loads(choice["message"]["content"]))


if __name__ == "__main__":
    unittest.main()
