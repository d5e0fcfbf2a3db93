"""llama-index's LLM of servers like OpenAI's: chat, streams, tools, structured output and completions."""

import unittest

# First, since it finds the folder of tool_server.
from langchain_test import QUESTION, Forecast  # isort: skip
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from tool_server import KNOWS_LANGUAGE, MODEL, ToolServerTest


def get_weather(city, days):
    """The weather of a city."""
    return f"sunny in {city} for {days} days"


class LlamaIndex(ToolServerTest):
    def model(self, tokens=400, chat=True):
        server = {"api_base": self.server.url, "api_key": "none", "max_retries": 0, "timeout": self.TIMEOUT}
        kind = {"is_chat_model": chat, "is_function_calling_model": chat}
        return OpenAILike(model=MODEL, temperature=0, max_tokens=tokens, **kind, **server)

    def check(self, forecast):
        self.assertIsInstance(forecast, Forecast)
        if KNOWS_LANGUAGE:
            self.assertEqual((forecast.city, forecast.days), ("Paris", 3))

    def test_chat(self):
        messages = [ChatMessage(role="system", content="Help."), ChatMessage(role="user", content=QUESTION)]
        whole = self.model(24).chat(messages).message.content
        self.assertEqual("".join(part.delta or "" for part in self.model(24).stream_chat(messages)), whole)

    def test_tools(self):
        tool = FunctionTool.from_defaults(get_weather, fn_schema=Forecast)
        model = self.model()
        answer = model.chat_with_tools([tool], user_msg=QUESTION, tool_required=True, allow_parallel_tool_calls=False)
        (call,) = model.get_tool_calls_from_response(answer)
        self.assertEqual(call.tool_name, "get_weather")
        self.check(Forecast(**call.tool_kwargs))
        output = model.predict_and_call([tool], user_msg=QUESTION, tool_required=True, allow_parallel_tool_calls=False)
        self.assertTrue(str(output).startswith("sunny in "), output)

    def test_structured_output(self):
        self.check(self.model().structured_predict(Forecast, PromptTemplate(QUESTION)))

    def test_completions(self):
        want = self.client.completions.create(model=MODEL, prompt="It was late", temperature=0, max_tokens=12)
        model = self.model(12, chat=False)
        self.assertEqual(model.complete("It was late").text, want.choices[0].text)
        self.assertEqual("".join(part.delta for part in model.stream_complete("It was late")), want.choices[0].text)


if __name__ == "__main__":
    unittest.main()
