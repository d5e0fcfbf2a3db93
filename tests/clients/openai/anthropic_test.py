"""Anthropic's own Python client against a model with a chat template: messages, streams, tools, errors; and an agent."""

import hashlib
import json
import pathlib
import tempfile
import unittest

import anthropic
import jsonschema
from openai_test import ServerTest, TemplateServer
from server_process import Server

TEMPLATE = """
{%- if tools %}{{ bos_token + (tools | tojson) + eos_token }}{% endif %}
{%- for message in messages %}
{{- bos_token + message['role'] + ': ' + (message['content'] or '') }}
{%- for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}
{{- eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ bos_token + 'assistant:' }}{% endif %}
"""
USER = {"role": "user", "content": "It was late"}
GREEDY = {"model": "demo", "max_tokens": 16, "messages": [USER], "extra_body": {"temperature": 0}}
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city at an hour.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "hour": {"type": "integer", "minimum": 0, "maximum": 23}},
        "required": ["city", "hour"],
        "additionalProperties": False,
    },
}


class AnthropicClient(ServerTest):
    @classmethod
    def serve(cls):
        return TemplateServer(TEMPLATE, "--prefix-cache-min-tokens", "64")

    @classmethod
    def connect(cls):
        return anthropic.Anthropic(base_url=f"http://{cls.server.http}", api_key="none", max_retries=0, timeout=cls.TIMEOUT)

    @property
    def messages(self):
        return self.client.messages

    def test_message(self):
        message = self.messages.create(**GREEDY, system=[{"type": "text", "text": "Be kind."}], thinking={"type": "disabled"})
        (block,) = message.content
        self.assertEqual((message.role, message.stop_reason, block.type), ("assistant", "max_tokens", "text"))
        self.assertEqual(message.usage.output_tokens, 16)
        count = self.messages.count_tokens(model="demo", system="Be kind.", messages=[USER])
        self.assertEqual(count.input_tokens, message.usage.input_tokens)
        # The content of the answer is accepted as history, with the fields that the client writes.
        history = [USER, {"role": "assistant", "content": message.content}, {"role": "user", "content": "Why?"}]
        again = self.messages.create(**GREEDY | {"messages": history}, system="Be kind.")
        self.assertGreater(again.usage.input_tokens, message.usage.input_tokens + 16)
        # It goes on after an answer that has begun.
        begun = block.text[: len(block.text) // 2].rstrip()
        went_on = self.messages.create(**GREEDY | {"messages": [USER, {"role": "assistant", "content": begun}]})
        self.assertEqual(went_on.usage.output_tokens, 16)

    def test_stream(self):
        whole = self.messages.create(**GREEDY)
        with self.messages.stream(**GREEDY) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual((final.content[0].text, final.stop_reason, final.usage), (text, "max_tokens", whole.usage))
        types = [event.type for event in self.messages.create(**GREEDY, stream=True)]
        self.assertEqual((types[0], types[-1]), ("message_start", "message_stop"))
        word = text.split()[3]
        with self.messages.stream(**GREEDY, stop_sequences=[word]) as stream:
            final = stream.get_final_message()
        self.assertEqual((final.stop_reason, final.stop_sequence), ("stop_sequence", word))
        self.assertEqual(final.content[0].text, text[: text.index(word)])

    def test_cache(self):
        system = [{"type": "text", "text": "The king said that it was late. " * 60, "cache_control": {"type": "ephemeral"}}]
        first = self.messages.create(**GREEDY, system=system).usage
        second = self.messages.create(**GREEDY, system=system).usage
        self.assertEqual(first.cache_read_input_tokens, 0)
        self.assertGreater(second.cache_read_input_tokens, 64)
        self.assertEqual(second.input_tokens + second.cache_read_input_tokens, first.input_tokens)

    def test_structured_output(self):
        schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
        asked = {"format": {"type": "json_schema", "schema": schema}}
        message = self.messages.create(**GREEDY | {"max_tokens": 200}, output_config=asked)
        self.assertEqual(message.stop_reason, "end_turn")
        jsonschema.validate(json.loads(message.content[0].text), schema)

    def test_agent(self):
        """A loop as agents have it: the model calls, the program answers, until the model says no more than text."""
        calls = []
        for streams in (False, True):
            messages = [{"role": "user", "content": "What is the weather in Paris and in Rome?"}]
            for turn in range(5):
                asked = {"model": "demo", "max_tokens": 200, "messages": messages, "tools": [WEATHER], "extra_body": {"seed": turn}}
                # The model is small: it is told when to call.
                asked["tool_choice"] = {"type": "any", "disable_parallel_tool_use": True} if turn < 4 else {"type": "none"}
                if streams:
                    with self.messages.stream(**asked) as stream:
                        message = stream.get_final_message()
                else:
                    message = self.messages.create(**asked)
                messages.append({"role": "assistant", "content": message.content})
                if message.stop_reason != "tool_use":
                    break
                results = []
                for block in message.content:
                    self.assertEqual((block.type, block.name), ("tool_use", "get_weather"))
                    jsonschema.validate(block.input, WEATHER["input_schema"])
                    calls.append(block.id)
                    content = [{"type": "text", "text": f"Sunny in {block.input['city']}."}]
                    results.append({"type": "tool_result", "tool_use_id": block.id, "content": content})
                messages.append({"role": "user", "content": results})
            self.assertEqual(len(messages), 10)
            self.assertNotEqual(message.stop_reason, "tool_use")
        self.assertGreaterEqual(len(calls), 8)
        self.assertEqual(len(set(calls)), len(calls))

    def test_tool_runner(self):
        """The loop of the client itself."""
        cities = []

        @anthropic.beta_tool
        def get_weather(city: str) -> str:
            """The weather of a city.

            Args:
                city: its name
            """
            cities.append(city)
            return "sunny"

        choice = {"type": "tool", "name": "get_weather"}
        asked = {"model": "demo", "max_tokens": 400, "messages": [USER], "tools": [get_weather], "tool_choice": choice}
        runner = self.client.beta.messages.tool_runner(**asked, max_iterations=2, extra_body={"seed": 3})
        answers = list(runner)
        self.assertEqual(len(answers), 2)
        self.assertEqual(answers[0].stop_reason, "tool_use")
        self.assertEqual(cities[0], answers[0].content[0].input["city"])

    def test_errors(self):
        with self.assertRaisesRegex(anthropic.BadRequestError, "reads text only"):
            image = {"type": "image", "source": {"type": "url", "url": "http://a/b.png"}}
            self.messages.create(**GREEDY | {"messages": [{"role": "user", "content": [image]}]})
        with self.assertRaises(anthropic.NotFoundError) as caught:
            self.messages.create(**GREEDY | {"model": "claude"})
        self.assertEqual((caught.exception.type, caught.exception.error_code), ("not_found_error", "NOT_FOUND"))
        self.assertIsNotNone(caught.exception.request_id)
        with self.assertRaisesRegex(anthropic.BadRequestError, "tools\\[0\\].type: expected custom"):
            self.messages.create(**GREEDY, tools=[{"type": "web_search_20250305", "name": "web_search"}])
        with self.assertRaises(anthropic.NotFoundError):
            self.client.messages.batches.list()

    def test_disconnect(self):
        endless = GREEDY | {"max_tokens": 100_000, "extra_body": {"ignore_eos": True}}
        with self.messages.create(**endless, stream=True) as stream:
            self.assertIn("content_block_delta", (event.type for event in stream))
        self.assertTrue(self.server.becomes_idle())


class Keys(unittest.TestCase):
    def test_key(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = pathlib.Path(folder) / "keys.jsonl"
            digest = hashlib.sha256(b"secret").hexdigest()
            keys.write_text(json.dumps({"name": "a", "sha256": digest, "tenant": "a"}) + "\n")
            server = Server("--api-keys", keys)
            for named in ({"api_key": "secret"}, {"auth_token": "secret"}):
                with anthropic.Anthropic(base_url=f"http://{server.http}", max_retries=0, **named) as client:
                    with self.assertRaisesRegex(anthropic.BadRequestError, "chat template"):
                        client.messages.create(**GREEDY)
            with anthropic.Anthropic(base_url=f"http://{server.http}", api_key="other", max_retries=0) as client:
                with self.assertRaises(anthropic.AuthenticationError):
                    client.messages.create(**GREEDY)
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
