"""openai-agents: the loop of tools, handoffs and structured output, over chat completions and responses, whole and as a stream."""

import asyncio
import unittest
from typing import Annotated

import agents
import openai
from pydantic import BaseModel, Field
from tool_server import KNOWS_LANGUAGE, MODEL, tool_server

agents.set_tracing_disabled(True)
# Bounds end the arguments of a model that knows no language.
City = Annotated[str, Field(min_length=1, max_length=20)]
Days = Annotated[int, Field(ge=1, le=99)]
QUESTION = "What is the weather in Paris for the next 3 days?"


class Verdict(BaseModel):
    sunny: bool


class Agents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = tool_server()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def run_with(self, work):
        """Runs work(model) for each API of the models."""

        async def run(kind):
            async with openai.AsyncOpenAI(base_url=self.server.url, api_key="none", max_retries=0, timeout=600) as client:
                await work(kind(model=MODEL, openai_client=client))

        # Over responses the package takes an answer that max_tokens cuts for an error: models/demo does not end.
        kinds = [agents.OpenAIChatCompletionsModel]
        for kind in [*kinds, agents.OpenAIResponsesModel] if KNOWS_LANGUAGE else kinds:
            with self.subTest(kind.__name__):
                asyncio.run(run(kind))

    def test_tool_loop(self):
        called = []

        @agents.function_tool
        def get_weather(city: City, days: Days) -> str:
            """The weather of a city."""
            called.append((city, days))
            return "sunny, 20 degrees"

        async def work(model):
            # The first turn must call; then the package resets the choice to auto.
            settings = agents.ModelSettings(tool_choice="get_weather", temperature=0, max_tokens=400)
            agent = agents.Agent("Weather", instructions="Help.", tools=[get_weather], model=model, model_settings=settings)
            called.clear()
            result = await agents.Runner.run(agent, QUESTION, max_turns=4)
            self.assertGreaterEqual(len(called), 1)
            if KNOWS_LANGUAGE:
                self.assertEqual(called[0], ("Paris", 3))
            self.assertIsInstance(result.final_output, str)
            # The conversation goes on, with its instructions.
            history = [*result.to_input_list(), {"role": "user", "content": "Thank you."}]
            short = agents.ModelSettings(temperature=0, max_tokens=400)
            plain = agents.Agent("Plain", instructions="Help.", model=model, model_settings=short)
            again = await agents.Runner.run(plain, history)
            self.assertTrue(again.final_output)
            ends = agent.clone(tool_use_behavior="stop_on_first_tool")
            streamed = agents.Runner.run_streamed(ends, QUESTION, max_turns=4)
            kinds = [event.type async for event in streamed.stream_events()]
            self.assertIn("run_item_stream_event", kinds)
            self.assertEqual(streamed.final_output, "sunny, 20 degrees")

        self.run_with(work)

    def test_handoff(self):
        async def work(model):
            short = agents.ModelSettings(temperature=0, max_tokens=400)
            other = agents.Agent("Weather expert", instructions="You know the weather.", model=model, model_settings=short)
            must = agents.ModelSettings(tool_choice="required", parallel_tool_calls=False, temperature=0, max_tokens=200)
            first = agents.Agent("Triage", instructions="Hand off.", handoffs=[other], model=model, model_settings=must)
            result = await agents.Runner.run(first, QUESTION, max_turns=3)
            self.assertEqual(result.last_agent.name, "Weather expert")
            self.assertTrue(result.final_output)

        self.run_with(work)

    def test_instructions_on_every_turn(self):
        async def work(model):
            settings = agents.ModelSettings(temperature=0, max_tokens=100)
            agent = agents.Agent("Plain", instructions="Answer shortly.", model=model, model_settings=settings, output_type=Verdict)
            history, tokens = [], []
            for question in ("It rains. Is it sunny?", "And now?", "Sure?"):
                result = await agents.Runner.run(agent, [*history, {"role": "user", "content": question}])
                history = result.to_input_list()
                tokens.append(result.raw_responses[-1].usage.input_tokens)
            self.assertEqual(tokens, sorted(set(tokens)))
            # Without its instructions the same conversation is shorter.
            bare = await agents.Runner.run(agent.clone(instructions=None), history)
            again = await agents.Runner.run(agent, history)
            self.assertGreater(again.raw_responses[-1].usage.input_tokens, bare.raw_responses[-1].usage.input_tokens)

        self.run_with(work)

    def test_structured_output(self):
        async def work(model):
            settings = agents.ModelSettings(temperature=0, max_tokens=100)
            agent = agents.Agent("Judge", model=model, model_settings=settings, output_type=Verdict)
            result = await agents.Runner.run(agent, "It rains. Is it sunny?")
            self.assertIsInstance(result.final_output, Verdict)

        self.run_with(work)


if __name__ == "__main__":
    unittest.main()
