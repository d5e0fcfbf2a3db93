"""Calls of tools by OpenAI's own Python client: choices, histories, streams, and many calls checked by jsonschema."""

import concurrent.futures
import json
import unittest

import jsonschema
from tool_server import FULL, KNOWS_LANGUAGE, MODEL, WEATHER, ToolServerTest

ALARM = {
    "type": "object",
    "properties": {
        "hour": {"type": "integer", "minimum": 0, "maximum": 23},
        "label": {"type": "string", "maxLength": 20},
        "repeat": {"type": "array", "items": {"enum": ["Mon", "Tue", "Wed"]}, "maxItems": 2},
    },
    "required": ["hour"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "set_alarm": ALARM}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "set_alarm", "description": "Sets an alarm", "parameters": ALARM}},
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CITIES = ["Paris", "Rome", "Berlin", "Madrid", "London", "Tokyo", "Oslo", "Vienna", "Lisbon", "Cairo"]
CALLS, STREAMS = (1000, 500) if FULL else (50, 30)


def question(i):
    city, days = CITIES[i % len(CITIES)], i % 14 + 1
    return city, days, [{"role": "user", "content": f"What is the weather in {city} for the next {days} days?"}]


class ToolClient(ToolServerTest):
    def ask(self, messages, **more):
        asked = {"model": MODEL, "messages": messages, "tools": TOOLS, "temperature": 0, "max_tokens": 400}
        return self.client.chat.completions.create(**asked | more)

    def check(self, calls):
        """The calls are valid. Returns the arguments of the first."""
        self.assertGreaterEqual(len(calls), 1)
        self.assertEqual(len({call.id for call in calls}), len(calls))
        for call in calls:
            jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
        return json.loads(calls[0].function.arguments)

    def test_choices(self):
        _, _, messages = question(0)
        none = self.ask(messages, tool_choice="none", max_tokens=16).choices[0]
        self.assertIsNone(none.message.tool_calls)
        free = self.ask(messages, tool_choice="auto").choices[0]
        if free.message.tool_calls:
            self.check(free.message.tool_calls)
        for choice in ("required", NAMED):
            answer = self.ask(messages, tool_choice=choice).choices[0]
            # A small model may call until max_tokens.
            self.assertIn(answer.finish_reason, ["tool_calls", "length"])
            self.check(answer.message.tool_calls)
        self.assertEqual([call.function.name for call in answer.message.tool_calls], ["get_weather"])
        self.assertEqual(answer.finish_reason, "tool_calls")
        one = self.ask(messages, tool_choice="required", parallel_tool_calls=False).choices[0]
        self.assertEqual(len(one.message.tool_calls), 1)

    def test_history(self):
        _, _, messages = question(3)
        message = self.ask(messages, tool_choice=NAMED).choices[0].message
        # As clients write it, with and without the fields that are null.
        for dumped in (message.model_dump(), message.model_dump(exclude_none=True)):
            result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny, 20 degrees"}
            answer = self.ask([*messages, dumped, result], tool_choice="none", max_tokens=16)
            self.assertGreater(answer.usage.prompt_tokens, 20)
            self.assertTrue(answer.choices[0].message.content)

    def test_responses(self):
        flat = [{"type": "function", "strict": True, **tool["function"]} for tool in TOOLS]
        _, _, messages = question(5)
        asked = {"model": MODEL, "tools": flat, "temperature": 0, "max_output_tokens": 200}
        response = self.client.responses.create(**asked, input=messages, tool_choice={"type": "function", "name": "get_weather"})
        (call,) = response.output
        jsonschema.validate(json.loads(call.arguments), WEATHER)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        whole = self.client.responses.create(**asked, input=[*messages, call.model_dump(), result], tool_choice="none")
        self.assertEqual(whole.output[-1].type, "message")
        # The server keeps the conversation.
        continued = self.client.responses.create(**asked, input=[result], previous_response_id=response.id, tool_choice="none")
        self.assertEqual(continued.output[-1].type, "message")

    def test_many_calls_are_valid(self):
        """Most calls echo the city and the number that the question names, where the model knows language."""

        def call(i):
            city, days, messages = question(i)
            choice = "required" if i % 2 == 0 else NAMED
            more = {"parallel_tool_calls": False, "seed": i, "temperature": 0 if i % 4 < 2 else 1}
            answer = self.ask(messages, tool_choice=choice, **more).choices[0]
            self.assertEqual(answer.finish_reason, "tool_calls")
            found = self.check(answer.message.tool_calls)
            return more["temperature"] == 0, found.get("city") == city, found.get("days") == days

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            found = list(pool.map(call, range(CALLS)))
        self.assertEqual(len(found), CALLS)
        for greedy in (True, False):
            of = [one for one in found if one[0] == greedy]
            cities, numbers = (sum(one[i] for one in of) / len(of) for i in (1, 2))
            print(f"{MODEL}, {'greedy' if greedy else 'sampled'}: {len(of)} calls, city {cities:.1%}, number {numbers:.1%}")
            if KNOWS_LANGUAGE and greedy:
                self.assertGreater(min(cities, numbers), 0.8)

    def test_streams(self):
        """A stream has the calls of the whole answer, whatever else runs; an answer in words beside streams has the tokens and the
        log-probabilities of one alone."""

        def words(i):
            more = {"seed": i, "max_tokens": 40, "logprobs": True, "top_logprobs": 2}
            answer = self.client.chat.completions.create(model=MODEL, messages=question(i)[2], **more).choices[0]
            return [token.model_dump() for token in answer.logprobs.content]

        alone = [words(i) for i in range(5)]
        asked = {"tool_choice": "required", "parallel_tool_calls": False}
        whole = {}
        for i in range(10):
            message = self.ask(question(i)[2], **asked).choices[0].message
            whole[i] = [(call.function.name, call.function.arguments) for call in message.tool_calls]

        def stream(i):
            if i % 6 == 5:
                self.assertEqual(words(i % 5), alone[i % 5])
            ids, calls, reason = set(), [], None
            for event in self.ask(question(i % 10)[2], **asked, stream=True):
                choice = event.choices[0]
                reason = choice.finish_reason or reason
                for part in choice.delta.tool_calls or []:
                    if part.index == len(calls):
                        calls.append(["", ""])
                        ids.add(part.id)
                    calls[part.index][0] += part.function.name or ""
                    calls[part.index][1] += part.function.arguments or ""
            self.assertEqual(reason, "tool_calls")
            self.assertEqual([tuple(call) for call in calls], whole[i % 10])
            self.assertEqual(len(ids), len(calls))

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            self.assertEqual(len(list(pool.map(stream, range(STREAMS)))), STREAMS)

    def test_a_closed_stream_is_cancelled(self):
        long = {"type": "object", "properties": {"text": {"type": "string", "minLength": 20000}}, "required": ["text"]}
        tools = [{"type": "function", "function": {"name": "write", "parameters": long}}]
        stream = self.ask(question(0)[2], tools=tools, tool_choice="required", stream=True, max_tokens=3000)
        for event in stream:
            if event.choices[0].delta.tool_calls:
                break
        stream.close()
        self.assertTrue(self.server.becomes_idle())


if __name__ == "__main__":
    unittest.main()
