"""Records what Jinja makes of templates/ and of the written cases of builtin_cases.py: recorded.json, recorded_builtins.json.

    .venv/bin/python tests/server/chat/record_templates.py

chat_template_test.cc compares with them. jinja_test.py compares with Jinja itself, and with more cases.
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
    cases = [case for case in builtin_cases.WRITTEN.strip("\n").split("\n") if case] + builtin_cases.MULTILINE
    write("recorded_builtins.json", {
        "variables": builtin_cases.VALUES,
        "cases": [{"template": case} | jinja_reference.expected(case, copy.deepcopy(builtin_cases.VALUES)) for case in cases],
    })


if __name__ == "__main__":
    main()
