"""langchain-openai: bind_tools and with_structured_output, over chat completions and responses; and completions."""

import pathlib
import sys
import unittest

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "openai"))
from tool_server import KNOWS_LANGUAGE, MODEL, ToolServerTest  # noqa: E402

QUESTION = "What is the weather in Paris for the next 3 days?"


class Forecast(BaseModel):
    """The weather that a user asks for."""

    # Bounds end the arguments of a model that knows no language.
    city: str = Field(min_length=1, max_length=20)
    days: int = Field(ge=1, le=99)


@tool(args_schema=Forecast)
def get_weather(city, days):
    """The weather of a city."""
    return f"sunny in {city} for {days} days"


class LangChain(ToolServerTest):
    def models(self, tokens=400):
        for responses in (False, True):
            with self.subTest(responses=responses):
                server = {"base_url": self.server.url, "api_key": "none", "max_retries": 0, "timeout": self.TIMEOUT}
                yield ChatOpenAI(model=MODEL, temperature=0, max_tokens=tokens, use_responses_api=responses, **server)

    def check(self, forecast):
        self.assertIsInstance(forecast, Forecast)
        if KNOWS_LANGUAGE:
            self.assertEqual((forecast.city, forecast.days), ("Paris", 3))

    def test_stream(self):
        for model in self.models(24):
            whole = model.invoke(QUESTION).text
            self.assertEqual("".join(part.text for part in model.stream(QUESTION)), whole)

    def test_bind_tools(self):
        for model in self.models():
            must = model.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False)
            answer = must.invoke(QUESTION)
            (call,) = answer.tool_calls
            self.check(Forecast(**call["args"]))
            result = get_weather.invoke(call)
            self.assertIsInstance(result, ToolMessage)
            again = model.bind_tools([get_weather], tool_choice="none").bind(max_tokens=24)
            self.assertTrue(again.invoke([HumanMessage(QUESTION), answer, result]).text)
            parts = list(must.stream(QUESTION))
            streamed = sum(parts[1:], start=parts[0])
            (call,) = streamed.tool_calls
            self.check(Forecast(**call["args"]))

    def test_with_structured_output(self):
        for model in self.models():
            for method in ("json_schema", "function_calling"):
                self.check(model.with_structured_output(Forecast, method=method).invoke(QUESTION))

    def test_completions(self):
        model = OpenAI(model=MODEL, base_url=self.server.url, api_key="none", temperature=0, max_tokens=12, max_retries=0)
        want = self.client.completions.create(model=MODEL, prompt="It was late", temperature=0, max_tokens=12)
        self.assertEqual(model.invoke("It was late"), want.choices[0].text)
        self.assertEqual("".join(model.stream("It was late")), want.choices[0].text)


if __name__ == "__main__":
    unittest.main()
