#!/usr/bin/env python3
"""Fails where the tree uses a word that misleads: a former name of what docs/glossary.md names, or a source that is not in the tree.

    check_words.py [ROOT]       checks the tree; each finding is a line FILE:LINE: message, and the exit status is 1
    check_words.py --self-test  plants each word in a scratch tree and demands that it is found

Every text file that git knows is read: code, comments, help texts, protos, rules, dashboards and documents.
"""

import os
import re
import subprocess

from checks import run, scratch_tree

TEXT = (".h", ".cc", ".cu", ".cuh", ".py", ".proto", ".md", ".yml", ".yaml", ".json", ".js", ".html", ".css", ".cmake",
        ".txt", ".toml", ".sh")
# Files without an ending that are text: scripts and tools.
SCRIPTS = re.compile(r"^(scripts|tools|bench|\.ci|deploy|third_party)/")
# Not our words: recorded data, schemas of others, passages of novels, and this list.
LEFT_OUT = re.compile(r"^(tests/data/|tests/deploy/schemas/|models/[^/]+/(config|recorded|tokenizer).*|LICENSE|CHANGELOG\.md|"
                      r"tools/polysketch_tools/calibration\.txt|"
                      r"tests/lint/check_words\.py)")

# (pattern, what to write, a pattern of the files in which it is allowed or None)
WORDS = [
    (r"\b(?:parked|parking|unparked)\b", "idle (in a slot) or preempted (without one)", r"(tests/)?server/app/"),
    (r"\bswapped\b", "preempted", r"tests/(cuda|simt)/|ARCHITECTURE\.md"),
    (r"\.\./shared\b", "what the file is, in the tree", r"tests/|tools/|CONTRIBUTING\.md|scripts/"),
    (r"\b(?:the|this) (?:issue|proposal)s?\b", "the fact itself", r"docs/security\.md|SECURITY\.md"),
    (r"--(?:parked|state)-memory\b", "--preempted-memory, --session-memory", r"tests/server/app/|server/app/"),
]


def files_of(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"],
                            capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return sorted(listed.stdout.split("\n"))
    found = []
    for folder, _, names in os.walk(root):
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(found)


def is_text(path):
    return path.endswith(TEXT) or (SCRIPTS.match(path) and "." not in os.path.basename(path))


def check_file(root, path):
    findings = []
    with open(os.path.join(root, path), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            for pattern, instead, allowed in WORDS:
                match = re.search(pattern, line, re.IGNORECASE if pattern.islower() else 0)
                if match and not (allowed and re.match(allowed, path)):
                    findings.append(f'{path}:{number}: "{match.group(0)}": write {instead} (docs/glossary.md)')
    return findings


def check_tree(root):
    findings = []
    for path in files_of(root):
        if is_text(path) and not LEFT_OUT.match(path) and os.path.isfile(os.path.join(root, path)):
            findings += check_file(root, path)
    return findings


# A line for each of WORDS in which it must be found, and lines in which nothing may be.
BAD_LINES = ["a parked one", "states swapped out", "see ../shared/design", "as the issue asks", "--state-memory 1GiB"]
GOOD_LINES = ["the token after it", "kMaxRows and almost", "Truncate(4)", "a Segment", "--session-memory 1GiB"]


def self_test():
    for line, findings_expected in [(line, True) for line in BAD_LINES] + [(line, False) for line in GOOD_LINES]:
        with scratch_tree() as (root, write):
            write("a.cc", f"// {line}\n")
            assert bool(check_tree(root)) == findings_expected, (line, findings_expected)


if __name__ == "__main__":
    run(check_tree, self_test, "words")
