#!/usr/bin/env python3
"""Writes recorded_python_calls.json: calls and what Python's ast reads in them, null for what is no call of literals by keyword.

    record_python_calls.py [--cases N]
"""

import argparse
import ast
import json
import os
import random
import re

# Where the reader differs: names of tools may have dots, hyphens and digits first; bytes, formatted strings, names of
# characters, comments, continued lines and numbers as keys with a fraction are not read.
NOT_READ = re.compile(r"""^\s*\(|^[^(]*[.-]|^\s*\d|""[bBfF]["']|\\N|\#|\\\n|\d[jJ]|\.\.\.|\.\d*\s*:""")


def literal(node):
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, type(None))):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = literal(node.operand)
        if isinstance(node.operand, ast.Constant) and type(value) in (int, float):
            return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [literal(key) for key in node.keys]
        if all(isinstance(key, (str, int, type(None))) for key in keys):
            return dict(zip(keys, [literal(value) for value in node.values]))
    raise ValueError(ast.dump(node))


def read(text):
    """[name, arguments], or None."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            return None
        if any(keyword.arg is None for keyword in call.keywords):
            return None
        arguments = {keyword.arg: literal(keyword.value) for keyword in call.keywords}
        return [call.func.id, json.loads(json.dumps(arguments))]  # keys, and characters of two \\u, as JSON has them
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def value(rng, depth):
    kind = rng.randrange(10 if depth < 3 else 6)
    if kind == 0:
        return rng.choice(["True", "False", "None"])
    if kind == 1:
        return rng.choice(
            ["0", "7", "-12", "+3", "12345678901234567890", "00", "-0", "1_000", "0_0", "0x1F", "-0XfF", "0b_101", "0o17"]
        )
    if kind == 2:
        return rng.choice(["1.5", "-.5", "2.", "1e3", "1.5E-2", "0.0", "010.5", "1_0.2_5e1_0"])
    if kind in (3, 4, 5):
        text = rng.choice(["Paris", "it's", 'a "b"', "a\\b", "line\nline", "é😀", "", "tab\t", "\x01", "}])", "a, b=1"])
        if kind == 5:
            escapes = ['"\\x41\\u00e9\\101\\q"', "'\\'\\\"'", '"a" \'b\'', '"\\U0001f600"', "'\\a\\v\\0'", "''"]
            others = [r"r'a\d\\'", r"""u'é' R"\n" """, "'''it's\n\\''''''", '""""a" b\r\n"""']
            return rng.choice(escapes + others)
        return repr(text) if rng.random() < 0.5 else json.dumps(text)
    items = [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    comma = "," if items and rng.random() < 0.3 else ""
    if kind == 6:
        return "[" + ", ".join(items) + comma + "]"
    if kind == 7:
        return "(" + ", ".join(items) + ("," if len(items) == 1 else comma) + ")"
    if kind == 9:
        keys = rng.sample(["3", "-2", "0x10", "True", "None", "'k'", "'a' 'b'", "1_0"], min(len(items), 8))
        return "{" + ", ".join(f"{key}: {item}" for key, item in zip(keys, items)) + comma + "}"
    return "{" + ", ".join(f"{json.dumps('k%d' % i)}: {item}" for i, item in enumerate(items)) + comma + "}"


def call(rng):
    names = rng.sample(["city", "days", "_x", "unit1"], rng.randrange(4))
    spaces = rng.choice(["", " ", "\n  "])
    arguments = ("," + spaces).join(f"{name}={value(rng, 0)}" for name in names)
    return f"get_weather({arguments}{',' if names and rng.random() < 0.2 else ''})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=600)
    args = parser.parse_args()
    rng = random.Random(1)
    cases = []
    while len(cases) < args.cases:
        text = call(rng)
        if len(cases) % 2:
            for _ in range(rng.randrange(1, 3)):
                at = rng.randrange(len(text))
                text = text[:at] + rng.choice(["", "", *"()[]{},='\"\\1.-e a:*_x0r"]) + text[at + 1:]
        read_as = read(text)
        if NOT_READ.search(text) or "\0" in text:
            continue
        try:
            json.dumps([text, read_as], allow_nan=False).encode()
            json.dumps([text, read_as], ensure_ascii=False).encode()
        except ValueError:  # half a character, infinity
            continue
        cases.append([text, read_as])
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "recorded_python_calls.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
