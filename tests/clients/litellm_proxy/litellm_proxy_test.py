"""litellm's proxy before the server, over the APIs of vLLM and of Anthropic: chats, streams, tools and /v1/messages pass through it."""

import json
import pathlib
import sys
import tempfile
import unittest
import urllib.request

import openai

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "openai"))
from server_process import Proxy, free_port  # noqa: E402
from tool_server import KNOWS_LANGUAGE, MODEL, WEATHER, tool_server  # noqa: E402

PROXY = pathlib.Path(sys.executable).parent / "litellm"
FUNCTION = {"name": "get_weather", "description": "The weather of a city.", "parameters": WEATHER}
TOOLS = [{"type": "function", "function": FUNCTION}]
MESSAGES = [{"role": "user", "content": "What is the weather in Paris for the next 3 days?"}]
KEY = "sk-of-the-proxy"
ROUTES = {"by-vllm": "hosted_vllm", "by-anthropic": "anthropic"}


class LiteLlmProxy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = tool_server()
        cls.addClassCleanup(cls.server.stop)
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        models = []
        for name, provider in ROUTES.items():
            base = f"http://{cls.server.http}" + ("" if provider == "anthropic" else "/v1")
            models.append({"model_name": name, "litellm_params": {"model": f"{provider}/{MODEL}", "api_base": base, "api_key": "none"}})
        config = pathlib.Path(folder.name) / "config.yaml"
        config.write_text(json.dumps({"model_list": models}))  # JSON is YAML
        port = free_port()
        cls.address = f"http://127.0.0.1:{port}"
        # With its own list of prices it fetches none.
        environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": KEY}
        environment |= {"HOME": folder.name, "PATH": f"{PROXY.parent}:/usr/bin:/bin"}
        command = [PROXY, "--config", config, "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
        proxy = Proxy(command, folder.name, environment)
        cls.addClassCleanup(proxy.stop)
        proxy.wait(cls.lives)
        cls.client = openai.OpenAI(base_url=f"{cls.address}/v1", api_key=KEY, max_retries=0, timeout=600)
        cls.direct = openai.OpenAI(base_url=cls.server.url, api_key="none", max_retries=0, timeout=600)
        cls.addClassCleanup(cls.client.close)
        cls.addClassCleanup(cls.direct.close)

    @classmethod
    def lives(cls):
        with urllib.request.urlopen(f"{cls.address}/health/liveliness", timeout=10):
            return True

    def ask(self, model, **more):
        asked = {"model": model, "messages": MESSAGES, "temperature": 0, "max_tokens": 24}
        client = self.direct if model == MODEL else self.client
        return client.chat.completions.create(**asked | more)

    def check(self, arguments):
        found = json.loads(arguments) if isinstance(arguments, str) else arguments
        self.assertEqual(sorted(found), ["city", "days"])
        if KNOWS_LANGUAGE:
            self.assertEqual((found["city"], found["days"]), ("Paris", 3))

    def test_chats_and_streams_are_those_of_the_server(self):
        want = self.ask(MODEL).choices[0].message.content
        for route in ROUTES:
            with self.subTest(route):
                self.assertEqual(self.ask(route).choices[0].message.content, want)
                events = list(self.ask(route, stream=True))
                text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
                self.assertEqual(text, want)

    def test_tools(self):
        for route in ROUTES:
            with self.subTest(route):
                asked = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 400, "parallel_tool_calls": False}
                choice = self.ask(route, **asked).choices[0]
                self.assertEqual(choice.finish_reason, "tool_calls")
                (call,) = choice.message.tool_calls
                self.check(call.function.arguments)
                parts = [part for event in self.ask(route, **asked, stream=True) if event.choices
                         for part in event.choices[0].delta.tool_calls or []]
                self.check("".join(part.function.arguments or "" for part in parts))
                result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
                history = [*MESSAGES, choice.message.model_dump(exclude_none=True), result]
                again = self.ask(route, messages=history, tools=TOOLS, tool_choice="none")
                self.assertTrue(again.choices[0].message.content)

    def test_messages_of_anthropic(self):
        tool = {"name": "get_weather", "description": "The weather of a city.", "input_schema": WEATHER}
        choice = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
        body = {"model": "by-anthropic", "messages": MESSAGES, "tools": [tool], "tool_choice": choice}
        body |= {"temperature": 0, "max_tokens": 400}
        headers = {"Content-Type": "application/json", "x-api-key": KEY, "anthropic-version": "2023-06-01"}
        request = urllib.request.Request(f"{self.address}/v1/messages", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=600) as answer:
            message = json.load(answer)
        self.assertEqual(message["stop_reason"], "tool_use")
        (call,) = message["content"]
        self.check(call["input"])

    def test_errors_pass(self):
        with self.assertRaisesRegex(openai.BadRequestError, "top_p"):
            self.ask("by-vllm", top_p=2)


if __name__ == "__main__":
    unittest.main()
