"""A server whose model calls tools: models/smollm2 where scripts/get-model has made it, else models/demo."""

import os

from openai_test import ServerTest
from server_process import ROOT, TOOL_TEMPLATE, Server

FULL = os.environ.get("POLYSKETCH_TEST_FULL") == "1"
SMOLLM = ROOT / "models/smollm2"
KNOWS_LANGUAGE = (SMOLLM / "model.safetensors").exists()
MODEL = "smollm2" if KNOWS_LANGUAGE else "demo"
# Of the arguments of a tool; bounds end those of a model that knows no language.
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}


def tool_server(*flags):
    """With a template of the form of Hermes and Qwen: that of the model writes no tools."""
    return Server("--chat-template", TOOL_TEMPLATE, "--max-sequences", "16", *flags, model=ROOT / "models" / MODEL)


class ToolServerTest(ServerTest):
    TIMEOUT = 600

    @classmethod
    def serve(cls):
        return tool_server()
