"""litellm's SDK, over each API that it speaks to this server: OpenAI's, vLLM's and Anthropic's."""

import asyncio
import json
import os
import pathlib
import sys
import unittest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import fetches prices
import litellm  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "openai"))
from tool_server import KNOWS_LANGUAGE, MODEL, WEATHER, ToolServerTest  # noqa: E402

litellm.suppress_debug_info = True
FUNCTION = {"name": "get_weather", "description": "The weather of a city.", "parameters": WEATHER}
TOOLS = [{"type": "function", "function": FUNCTION}]
MESSAGES = [{"role": "user", "content": "What is the weather in Paris for the next 3 days?"}]
PROVIDERS = ("openai", "hosted_vllm", "anthropic")


class LiteLlm(ToolServerTest):
    def asked(self, provider, tokens=400):
        base = self.server.url.removesuffix("/v1") if provider == "anthropic" else self.server.url
        model = {"model": f"{provider}/{MODEL}", "api_base": base, "api_key": "none"}
        return model | {"temperature": 0, "max_tokens": tokens, "max_retries": 0, "timeout": self.TIMEOUT}

    def check(self, name, arguments):
        self.assertEqual(name, "get_weather")
        got = json.loads(arguments) if isinstance(arguments, str) else arguments
        self.assertEqual(sorted(got), ["city", "days"])
        if KNOWS_LANGUAGE:
            self.assertEqual((got["city"], got["days"]), ("Paris", 3))

    def test_chat(self):
        texts = set()
        for provider in PROVIDERS:
            with self.subTest(provider):
                answer = litellm.completion(messages=MESSAGES, **self.asked(provider, 24))
                events = list(litellm.completion(messages=MESSAGES, stream=True, **self.asked(provider, 24)))
                text = answer.choices[0].message.content
                self.assertEqual("".join(event.choices[0].delta.content or "" for event in events), text)
                self.assertGreater(answer.usage.prompt_tokens, 0)
                texts.add(text)
        self.assertEqual(len(texts), 1)

    def test_tools(self):
        for provider in PROVIDERS:
            with self.subTest(provider):
                asked = {"messages": MESSAGES, "tools": TOOLS, "parallel_tool_calls": False} | self.asked(provider)
                answer = litellm.completion(tool_choice="required", **asked).choices[0]
                self.assertEqual(answer.finish_reason, "tool_calls")
                (call,) = answer.message.tool_calls
                self.check(call.function.name, call.function.arguments)
                named = {"type": "function", "function": {"name": "get_weather"}}
                events = list(litellm.completion(tool_choice=named, stream=True, **asked))
                (call,) = litellm.stream_chunk_builder(events).choices[0].message.tool_calls
                self.check(call.function.name, call.function.arguments)
                # The result of the tool is part of the conversation.
                history = [answer.message, {"role": "tool", "tool_call_id": answer.message.tool_calls[0].id, "content": "sunny"}]
                again = litellm.completion(**asked | {"messages": MESSAGES + history, "tool_choice": "none", "max_tokens": 24})
                self.assertGreater(again.usage.prompt_tokens, 50)

    def test_completions_and_responses(self):
        asked = self.asked("openai", 12)
        text = litellm.text_completion(prompt="It was late", **asked).choices[0].text
        want = self.client.completions.create(model=MODEL, prompt="It was late", temperature=0, max_tokens=12)
        self.assertEqual(text, want.choices[0].text)
        asked["max_output_tokens"] = 400
        del asked["max_tokens"]
        tools = [{"type": "function", **FUNCTION}]
        choice = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
        (call,) = litellm.responses(input=MESSAGES, **choice, **asked).output
        self.check(call.name, call.arguments)

    def test_messages_of_anthropic(self):
        tool = {"name": "get_weather", "description": "The weather of a city.", "input_schema": WEATHER}
        choice = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
        asked = {"messages": MESSAGES, "tools": [tool], "tool_choice": choice} | self.asked("anthropic")
        answer = asyncio.run(litellm.anthropic.messages.acreate(**asked))
        (call,) = answer["content"]
        self.check(call["name"], call["input"])

    def test_errors(self):
        with self.assertRaisesRegex(litellm.NotFoundError, "gpt"):
            litellm.completion(messages=MESSAGES, **self.asked("openai") | {"model": "openai/gpt"})
        with self.assertRaisesRegex(litellm.BadRequestError, "top_p"):
            litellm.completion(messages=MESSAGES, top_p=2, **self.asked("openai"))


if __name__ == "__main__":
    unittest.main()
