"""instructor, which makes objects of pydantic of answers: by calls of tools, by JSON Schemas, and as a stream."""

import json
import pathlib
import sys
import unittest

import instructor
from pydantic import BaseModel, Field

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "openai"))
from tool_server import KNOWS_LANGUAGE, MODEL, ToolServerTest  # noqa: E402


class Forecast(BaseModel):
    """The weather that a user asks for."""

    city: str = Field(min_length=1, max_length=20)
    days: int = Field(ge=1, le=99)


MESSAGES = [{"role": "user", "content": "What is the weather in Paris for the next 3 days?"}]


class Instructor(ToolServerTest):
    def check(self, forecast):
        self.assertIsInstance(forecast, Forecast)
        if KNOWS_LANGUAGE:
            self.assertEqual((forecast.city, forecast.days), ("Paris", 3))

    def ask(self, mode, **more):
        client = instructor.from_openai(self.client, mode=mode)
        asked = {"model": MODEL, "messages": MESSAGES, "response_model": Forecast, "max_retries": 0}
        return client.chat.completions.create(**asked | {"temperature": 0, "max_tokens": 400} | more)

    def test_tools(self):
        self.check(self.ask(instructor.Mode.TOOLS))

    def test_json_schema(self):
        self.check(self.ask(instructor.Mode.JSON_SCHEMA))

    def test_partial(self):
        client = instructor.from_openai(self.client, mode=instructor.Mode.TOOLS)
        asked = {"model": MODEL, "messages": MESSAGES, "response_model": Forecast, "temperature": 0, "max_tokens": 400}
        parts = list(client.chat.completions.create_partial(**asked))
        self.assertGreaterEqual(len(parts), 2)
        self.check(Forecast(**json.loads(parts[-1].model_dump_json())))


if __name__ == "__main__":
    unittest.main()
