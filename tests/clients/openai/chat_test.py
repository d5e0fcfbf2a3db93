"""OpenAI's own Python client against a model with a chat template: chat completions, responses and their streams."""

import hashlib
import json
import tempfile
import unittest

import openai
from openai_test import ServerTest, TemplateServer

TEMPLATE = """
{%- for message in messages %}
{{- bos_token + message['role'] + ': ' + message['content'] + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ bos_token + 'assistant:' }}{% endif %}
"""
MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "It was late"}]
CHAT = {"model": "demo", "messages": MESSAGES, "temperature": 0, "max_completion_tokens": 16}
RESPONSE = {"model": "demo", "input": "It was late", "temperature": 0, "max_output_tokens": 16}


class ChatClient(ServerTest):
    @classmethod
    def serve(cls):
        return TemplateServer(TEMPLATE)

    def test_chat(self):
        answer = self.client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2, n=2)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1])
        message = answer.choices[0].message
        self.assertEqual((message.role, answer.choices[0].finish_reason), ("assistant", "length"))
        tokens = answer.choices[0].logprobs.content
        self.assertEqual(b"".join(bytes(token.bytes) for token in tokens).decode(), message.content)
        self.assertEqual(answer.usage.completion_tokens, 32)
        # The message of the answer is accepted as history, with the fields that the client writes.
        history = [*MESSAGES, message.model_dump(), {"role": "user", "content": [{"type": "text", "text": "Why?"}]}]
        again = self.client.chat.completions.create(**CHAT | {"messages": history})
        self.assertGreater(again.usage.prompt_tokens, answer.usage.prompt_tokens + 16)

    def test_chat_stream(self):
        whole = self.client.chat.completions.create(**CHAT)
        events = list(self.client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}))
        self.assertEqual(events[0].choices[0].delta.role, "assistant")
        text = "".join(event.choices[0].delta.content or "" for event in events[:-1])
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(events[-2].choices[0].finish_reason, "length")
        self.assertEqual(events[-1].usage, whole.usage)
        # The helper of the client puts the stream together; it takes an answer that was cut for an error.
        word = text.split()[3]
        with self.client.chat.completions.stream(**CHAT, stop=word) as stream:
            final = stream.until_done().get_final_completion()
        self.assertEqual(final.choices[0].message.content, text[: text.index(word)])

    def test_chat_stop_and_template_variables(self):
        text = self.client.chat.completions.create(**CHAT).choices[0].message.content
        word = text.split()[3]
        stopped = self.client.chat.completions.create(**CHAT, stop=word, extra_body={"chat_template_kwargs": {"x": [1]}})
        self.assertEqual(stopped.choices[0].message.content, text[: text.index(word)])
        self.assertEqual(stopped.choices[0].finish_reason, "stop")

    def test_responses(self):
        first = self.client.responses.create(**RESPONSE, instructions="Be kind.")
        self.assertEqual(first.status, "incomplete")
        self.assertEqual(first.incomplete_details.reason, "max_output_tokens")
        chat = self.client.chat.completions.create(**CHAT)
        self.assertEqual(first.output_text, chat.choices[0].message.content)
        self.assertEqual(first.usage.input_tokens, chat.usage.prompt_tokens)
        turn = RESPONSE | {"input": [{"role": "user", "content": "Why?"}], "previous_response_id": first.id}
        # openai-agents sends them with each turn.
        self.client.responses.create(**turn, instructions="Be kind.", include=["reasoning.encrypted_content"])
        with self.assertRaisesRegex(openai.BadRequestError, "instructions"):
            self.client.responses.create(**turn, instructions="Be brief.")
        second = self.client.responses.create(**turn)
        held = first.usage.total_tokens  # and the piece that ends the answer, which is input of the next step
        self.assertEqual(second.usage.input_tokens_details.cached_tokens, held)
        self.assertGreater(second.usage.input_tokens, held)
        # The same turn again, as a stream.
        events = list(self.client.responses.create(**turn, stream=True))
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        types = [event.type for event in events]
        self.assertEqual(
            [t for i, t in enumerate(types) if t not in types[:i]],
            [
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.content_part.added",
                "response.output_text.delta",
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.incomplete",
            ],
        )
        self.assertEqual(events[-1].response.output_text, second.output_text)
        third = self.client.responses.create(**RESPONSE | {"previous_response_id": second.id, "input": "And?"})
        self.assertEqual(third.usage.input_tokens_details.cached_tokens, second.usage.total_tokens)
        for response in (first, second, events[-1].response, third):
            self.client.responses.delete(response.id)
        with self.assertRaisesRegex(openai.NotFoundError, first.id):
            self.client.responses.create(**turn)

    def test_stored_responses(self):
        responses = self.client.responses
        first = responses.create(**RESPONSE, truncation="auto", include=["reasoning.encrypted_content"])
        self.assertEqual(first.truncation, "auto")
        self.assertEqual(responses.retrieve(first.id), first)
        turn = RESPONSE | {"input": "Why?", "previous_response_id": first.id}
        *_, last = responses.create(**turn, stream=True)
        second = last.response
        self.assertEqual(responses.retrieve(second.id).output_text, second.output_text)
        newest = list(responses.input_items.list(second.id))
        self.assertEqual([item.type for item in newest], ["message"] * 3)
        self.assertEqual([item.content[0].text for item in newest], ["Why?", first.output_text, RESPONSE["input"]])
        oldest = list(responses.input_items.list(second.id, order="asc", limit=1))  # a page for each
        self.assertEqual(oldest, newest[::-1])
        responses.delete(first.id)
        with self.assertRaisesRegex(openai.NotFoundError, first.id):
            responses.retrieve(first.id)
        self.assertEqual([item.content[0].text for item in responses.input_items.list(second.id)], ["Why?"])
        responses.delete(second.id)

    def test_a_conversation_of_hundreds_of_turns(self):
        """Each turn processes its own tokens alone, the 200th as the second."""
        before = self.server.metric("polysketch_prompt_tokens_total")
        previous, costs, texts = None, [], []
        for turn in range(200):
            response = self.client.responses.create(
                **RESPONSE | {"input": f"And then, {turn % 10}?", "max_output_tokens": 4}, previous_response_id=previous
            )
            usage = response.usage
            costs.append(usage.input_tokens - usage.input_tokens_details.cached_tokens)
            previous = response.id
            texts += [f"And then, {turn % 10}?", response.output_text]
        # A turn's tokens, and the last of the answer before it. The piece that ends an answer is processed alone.
        self.assertLessEqual(max(costs[1:]), costs[0] + 2)
        processed = self.server.metric("polysketch_prompt_tokens_total") - before
        self.assertLessEqual(processed, sum(costs) + 200)
        items = list(self.client.responses.input_items.list(previous, order="asc", limit=100))
        self.assertEqual([item.content[0].text for item in items], texts[:-1])

    def test_response_that_completes(self):
        text = self.client.responses.create(**RESPONSE).output_text
        word = text.split()[3]
        with self.client.responses.stream(**RESPONSE, extra_body={"stop": word}) as stream:
            final = stream.until_done().get_final_response()
        self.assertEqual((final.status, final.output_text), ("completed", text[: text.index(word)]))

    def test_response_that_is_not_stored(self):
        response = self.client.responses.create(**RESPONSE, store=False, metadata={"a": "b"})
        self.assertEqual(response.metadata, {"a": "b"})
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.create(**RESPONSE, previous_response_id=response.id)

    def test_structured_output(self):
        schema = {"enum": ["yes", "no"]}
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        answer = self.client.chat.completions.create(**CHAT, response_format=form)
        self.assertIn(answer.choices[0].message.content, ['"yes"', '"no"'])
        form = {"type": "json_schema", "name": "answer", "schema": schema}
        response = self.client.responses.create(**RESPONSE, text={"format": form})
        self.assertEqual((response.status, response.output_text), ("completed", answer.choices[0].message.content))
        self.assertEqual(response.text.format.model_dump(by_alias=True)["schema"], schema)

    def test_tools(self):
        schema = {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        }
        tools = [{"type": "function", "function": {"name": "get_weather", "parameters": schema}}]
        asked = {**CHAT, "tools": tools, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
        asked |= {"max_completion_tokens": 200}
        choice = self.client.chat.completions.create(**asked).choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        (call,) = choice.message.tool_calls
        self.assertEqual(call.function.name, "get_weather")
        self.assertIn(json.loads(call.function.arguments)["city"], ["Paris", "Rome"])
        with self.client.chat.completions.stream(**asked) as stream:
            final = stream.get_final_completion().choices[0]
        self.assertEqual(final.finish_reason, "tool_calls")
        self.assertEqual(final.message.tool_calls[0].function.arguments, call.function.arguments)
        tool = {"type": "function", "name": "get_weather", "parameters": schema, "strict": True}
        named = {"type": "function", "name": "get_weather"}
        asked_response = RESPONSE | {"tools": [tool], "tool_choice": named, "max_output_tokens": 200}
        (item,) = self.client.responses.create(**asked_response).output
        self.assertEqual((item.type, item.name, item.arguments), ("function_call", "get_weather", call.function.arguments))
        with self.client.responses.stream(**asked_response) as stream:
            self.assertEqual(stream.get_final_response().output[0].arguments, item.arguments)
        # The result of the tool follows.
        messages = CHAT["messages"] + [
            choice.message.model_dump(exclude_none=True) | {"content": "It calls."},
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ]
        answer = self.client.chat.completions.create(**asked | {"messages": messages, "tool_choice": "none"})
        self.assertIsNone(answer.choices[0].message.tool_calls)

    def test_a_template_without_tools_gets_them_as_text(self):
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        bare, described = (self.client.chat.completions.create(**CHAT | more) for more in ({}, {"tools": tools}))
        self.assertGreater(described.usage.prompt_tokens, bare.usage.prompt_tokens)
        tools = [{"type": "function", "name": "f", "parameters": {}, "strict": True}]
        bare, described = (self.client.responses.create(**RESPONSE | more) for more in ({}, {"tools": tools}))
        self.assertGreater(described.usage.input_tokens, bare.usage.input_tokens)

    def test_errors(self):
        chat, responses = self.client.chat.completions, self.client.responses
        with self.assertRaisesRegex(openai.BadRequestError, "found \"xml\""):
            chat.create(**CHAT, response_format={"type": "xml"})
        with self.assertRaisesRegex(openai.BadRequestError, "reads text only"):
            image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
            chat.create(**CHAT | {"messages": [{"role": "user", "content": image}]})
        with self.assertRaisesRegex(openai.NotFoundError, "gpt"):
            chat.create(**CHAT | {"model": "gpt"})
        with self.assertRaisesRegex(openai.BadRequestError, "background"):
            responses.create(**RESPONSE, background=True)
        with self.assertRaisesRegex(openai.BadRequestError, "expected auto or disabled"):
            responses.create(**RESPONSE, truncation="some")
        with self.assertRaisesRegex(openai.NotFoundError, "resp_1"):
            responses.delete("resp_1")


class Tenants(unittest.TestCase):
    def test_a_response_belongs_to_the_tenant_of_its_key(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            for name in ("alice", "bob"):
                sha256 = hashlib.sha256(f"key-of-{name}".encode()).hexdigest()
                keys.write(json.dumps({"name": name, "sha256": sha256, "tenant": name}) + "\n")
            keys.flush()
            server = TemplateServer(TEMPLATE, "--api-keys", keys.name)
        alice, bob = (
            openai.OpenAI(base_url=server.url, api_key=f"key-of-{name}", max_retries=0) for name in ("alice", "bob")
        )
        with alice, bob:
            response = alice.responses.create(**RESPONSE)
            for call in (bob.responses.retrieve, bob.responses.input_items.list, bob.responses.delete):
                for headers in ({}, {"X-Tenant-Id": "alice"}):
                    with self.assertRaises(openai.NotFoundError):
                        call(response.id, extra_headers=headers)
            self.assertEqual(alice.responses.retrieve(response.id), response)
        self.assertEqual(server.stop(), 0)


class Reasoning(ServerTest):
    """A template that begins the reasoning of the answer, which max_tokens cuts."""

    @classmethod
    def serve(cls):
        return TemplateServer(TEMPLATE.replace("'assistant:' }}", "'assistant:<think>' }}") + "{# </think> #}")

    def test_reasoning(self):
        client = self.client
        plain = client.chat.completions.create(**CHAT, extra_body={"reasoning_format": "none"}).choices[0].message
        answer = client.chat.completions.create(**CHAT)
        message = answer.choices[0].message
        self.assertEqual((message.content, message.reasoning_content), ("", plain.content.strip()))
        self.assertEqual(answer.usage.completion_tokens_details.reasoning_tokens, 16)
        deltas = [event.choices[0].delta for event in client.chat.completions.create(**CHAT, stream=True)]
        thought = "".join(getattr(delta, "reasoning_content", "") for delta in deltas)
        self.assertEqual((thought, "".join(delta.content or "" for delta in deltas)), (message.reasoning_content, ""))
        hidden = client.chat.completions.create(**CHAT, extra_body={"include_reasoning": False}).choices[0].message
        self.assertFalse(hasattr(hidden, "reasoning_content"))
        (item,) = client.responses.create(**RESPONSE).output
        self.assertEqual((item.type, item.status), ("reasoning", "incomplete"))
        *_, end = client.responses.create(**RESPONSE, stream=True)
        (last,) = end.response.output
        self.assertEqual(last.content, item.content)
        # It comes back as a part of the history.
        history = [{"role": "user", "content": "x"}, item.model_dump(), {"role": "user", "content": "y"}]
        again = client.responses.create(**RESPONSE | {"input": history})
        self.assertGreater(again.usage.input_tokens, 5)


class WithoutTemplate(ServerTest):
    def test_chat_is_refused(self):
        with self.assertRaisesRegex(openai.BadRequestError, "chat template"):
            self.client.chat.completions.create(**CHAT)
        with self.assertRaisesRegex(openai.BadRequestError, "chat template"):
            self.client.responses.create(**RESPONSE)


if __name__ == "__main__":
    unittest.main()
