"""Compares server/chat with Jinja: every builtin with each of its arguments, random chains of filters, and whole templates.

    POLYSKETCH_BIN_DIR=build/cpu/bin .venv/bin/python tests/server/chat/jinja_test.py [FOLDER...]

FOLDERs hold more templates, *.jinja: public_templates.py copies those of public models into one.
"""

import copy
import json
import os
import pathlib
import subprocess
import sys
import unicodedata
import unittest

try:
    import builtin_cases
    import conversations
    import jinja_reference
except ImportError as missing:
    print(f"skipped: {missing}; tests/server/requirements.txt has it", file=sys.stderr)
    sys.exit(77)

FOLDER = pathlib.Path(__file__).parent
PROGRAM = pathlib.Path(os.environ.get("POLYSKETCH_BIN_DIR", "build/cpu/bin")) / "polysketch-chat-render"
FULL = os.environ.get("POLYSKETCH_TEST_FULL") == "1"
SEED = int(os.environ.get("SEED", "1"))
RANDOM_CASES = 50_000 if FULL else 3_000
folders = [FOLDER / "templates"]


def rendered(cases):
    """What the program makes of (template, variables)."""
    lines = "".join(json.dumps({"template": template, "variables": variables}) + "\n" for template, variables in cases)
    run = subprocess.run([PROGRAM], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in run.stdout.split("\n")[:-1]]


def address(answer):
    """Whether a text has the address of an object, which differs by run."""
    return " at 0x" in answer.get("text", "").lower()


class JinjaTest(unittest.TestCase):
    def compare(self, cases, may_refuse=0):
        """`may_refuse`: how many cases Jinja takes, as it looks at arguments only where they count."""
        refused = []
        for (template, variables), found in zip(cases, rendered(cases), strict=True):
            expected = jinja_reference.expected(template, copy.deepcopy(variables))
            if address(expected):
                continue
            if "text" in expected and "error" in found:
                refused.append(f"{template}: {found['error']}")
            elif expected.get("text") != found.get("text"):
                self.fail(f"{template} of {variables}: expected {expected}, found {found}")
        self.assertLessEqual(len(refused), may_refuse, "\n".join(refused[:20]))

    def test_every_builtin_with_its_arguments(self):
        self.compare([(case, builtin_cases.VALUES) for case in dict.fromkeys(builtin_cases.table_cases())])

    def test_random_chains(self):
        print(f"seed {SEED}", file=sys.stderr)
        cases = builtin_cases.random_cases(SEED, RANDOM_CASES)
        self.compare([(case, builtin_cases.VALUES) for case in cases], may_refuse=RANDOM_CASES // 50)

    def test_integers_of_64_bits_without_a_sign(self):
        variables = {"a": 2**64 - 1, "b": 2**63, "d": {"k": [2**64 - 1]}}
        texts = ["{{ a }} {{ d }} {{ d|tojson }} {{ a|string ~ b }} {{ '%s' % b }}", "{{ a == a }}{{ a == b }}{{ a in d.k }}{{ 1 if a }}", "{{ a > b }}"]
        tests = [f"{{{{ a is {test} }}}}" for test in ("number", "integer", "float", "odd", "defined", "string")]
        self.compare([(text, variables) for text in texts + tests], may_refuse=2)  # a > b, odd

    def test_repr_of_every_character(self):
        characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000 and unicodedata.category(chr(code)) != "Cn"]
        rows = [characters[at : at + 1000] for at in range(0, len(characters), 1000)]
        self.compare([("{{ row }}", {"row": row}) for row in rows])

    def test_templates(self):
        for folder in folders:
            files = sorted(pathlib.Path(folder).glob("*.jinja"))
            self.assertGreater(len(files), 0, folder)
            for path in files:
                text = path.read_bytes().decode()
                with self.subTest(path.name):
                    self.compare([(text, variables) for variables in conversations.cases(text)])


if __name__ == "__main__":
    folders += sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
