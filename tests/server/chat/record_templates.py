"""Records what Jinja makes of templates/ and of the written cases of builtin_cases.py: recorded.json, recorded_tools.json,
recorded_builtins.json.

    .venv/bin/python tests/server/chat/record_templates.py

chat_template_test.cc and openai/tools_test.cc compare with them. jinja_test.py compares with Jinja itself, and with more cases.
"""

import copy
import json
import pathlib

import builtin_cases
import conversations
import jinja_reference

FOLDER = pathlib.Path(__file__).parent
PIECES = {"bos_token": "<s>", "eos_token": "</s>"}
VARIABLES = [{}, {"enable_thinking": False}, {"date_string": "1 May"}]
# Of these the texts are kept: the templates of the most common formats.
RECORDED = ["chatml", "gemma", "llama2", "llama3", "mistral", "phi", "plain", "qwen", "zephyr"]
# Those with tools.
WITH_TOOLS = ["header_tools", "hermes_tools", "instruct_tools"]


def of_api(message):
    """The message as a client of the API sends it: arguments in a string."""
    message = copy.deepcopy(message)
    for call in message.get("tool_calls", []):
        if not isinstance(call["function"]["arguments"], str):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return message


def of_transformers(message):
    """The message of the API as apply_chat_template takes it, which vLLM makes too: arguments as a dict, no empty calls, text
    parts as lines."""
    message = copy.deepcopy(message)
    for call in message.get("tool_calls", []):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    if isinstance(message["content"], list):
        message["content"] = "\n".join(part["text"] for part in message["content"])
    if message["content"] == "" and message.get("tool_calls"):
        message["content"] = None
    return message


def record_tools(text, conversation, tools, add_generation_prompt):
    messages = [of_api(message) for message in conversation]
    given = {"messages": [of_transformers(message) for message in messages], "tools": tools, "documents": None} | PIECES
    given["add_generation_prompt"] = add_generation_prompt
    case = {"messages": messages, "with_tools": tools is not None, "add_generation_prompt": add_generation_prompt}
    return case | jinja_reference.expected(text, copy.deepcopy(given))


def record(text, conversation, add_generation_prompt, variables):
    case = {"messages": conversation, "add_generation_prompt": add_generation_prompt, "variables": variables}
    given = case | {"tools": None, "documents": None} | PIECES | variables
    del given["variables"]
    return case | jinja_reference.expected(text, copy.deepcopy(given))


def write(name, recorded):
    (FOLDER / name).write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    recorded = {}
    for name in RECORDED:
        text = (FOLDER / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
        recorded[name] = [
            record(text, conversation, prompt, variables)
            for variables in VARIABLES
            if not variables or next(iter(variables)) in text
            for conversation in conversations.PLAIN[:-2]
            for prompt in (True, False)
        ]
    write("recorded.json", recorded)
    recorded = {}
    for name in WITH_TOOLS:
        text = (FOLDER / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
        recorded[name] = [
            record_tools(text, conversation, tools, prompt)
            for tools in (None, conversations.TOOLS)
            for conversation in conversations.RICH + [conversations.PLAIN[2]]
            if all(message.get("tool_calls", True) for message in conversation) and "reasoning" not in str(conversation)
            and "image" not in str(conversation)
            and all(message["content"] is not None or "tool_calls" in message for message in conversation)
            for prompt in (True, False)
        ]
    write("recorded_tools.json", {"tools": conversations.TOOLS, "templates": recorded})
    cases = [case for case in builtin_cases.WRITTEN.strip("\n").split("\n") if case] + builtin_cases.MULTILINE
    write("recorded_builtins.json", {
        "variables": builtin_cases.VALUES,
        "cases": [{"template": case} | jinja_reference.expected(case, copy.deepcopy(builtin_cases.VALUES)) for case in cases],
    })


if __name__ == "__main__":
    main()
