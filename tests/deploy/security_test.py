"""docs/security.md names tests for what it promises: they exist, and each attack stands for a promise."""

import re
import sys
import unittest

from support import ROOT

sys.path.insert(0, str(ROOT / "tests/hostile"))
from attack_run import ATTACKS  # noqa: E402

TEXT = (ROOT / "docs/security.md").read_text()


class Security(unittest.TestCase):
    def test_named_files_exist(self):
        paths = set(re.findall(r"\b(?:tests|deploy)/[\w./-]*\w", TEXT))
        self.assertGreater(len(paths), 15)
        for path in paths:
            self.assertTrue((ROOT / path).exists(), path)

    def test_named_tests_exist(self):
        code = "".join(path.read_text() for path in (ROOT / "tests/hostile").glob("*_test.py"))
        names = set(re.findall(r"`(test_\w+)", TEXT))
        self.assertGreater(len(names), 8)
        for name in names:
            self.assertIn(f"def {name}", code)

    def test_each_attack_is_named(self):
        for attack in ATTACKS:
            self.assertIn(f"`{attack.name}`", TEXT)

    def test_each_promise_names_its_test(self):
        rows = re.findall(r"^\| (?!promise|fault|who|surrounding|attack|---)(.*) \|$", TEXT.split("## What the server")[1].split("\n## Drains")[0],
                          flags=re.MULTILINE)
        self.assertGreater(len(rows), 30)
        for row in rows:
            self.assertRegex(row.rsplit("|", 1)[1], r"tests/|`\w+`", row)


if __name__ == "__main__":
    unittest.main()
