#!/usr/bin/env python3
"""Fails where a link of a Markdown page leads to no file of the tree, or to no heading of a page.

    check_links.py [ROOT]       checks the tree; each finding is a line FILE: LINK, and the exit status is 1
    check_links.py --self-test  plants a fault of each kind in a scratch tree and demands that it is found

Links to other hosts are not followed. Anchors are those that GitHub makes of headings.
"""

import os
import re
import subprocess

from checks import run, scratch_tree

LINK = re.compile(r"\]\(([^)\s#]*)(#[^)\s]*)?\)")


def pages(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
                            capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return sorted(path for path in listed.stdout.splitlines() if os.path.isfile(os.path.join(root, path)))
    return sorted(os.path.relpath(os.path.join(folder, name), root)
                  for folder, _, names in os.walk(root) for name in names if name.endswith(".md"))


def prose(text):
    """The text without blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def anchors(text):
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(text), re.M):
        name = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())).replace(" ", "-")
        number = 0
        while (anchor := f"{name}-{number}" if number else name) in found:
            number += 1
        found.add(anchor)
    return found


def check_tree(root):
    texts = {}
    for path in pages(root):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            texts[path] = file.read()
    findings = []
    for path, text in texts.items():
        for target, anchor in LINK.findall(prose(text)):
            if re.match(r"[a-z]+:", target):
                continue
            to = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
            if not os.path.exists(os.path.join(root, to)):
                findings.append(f"{path}: there is no {target}")
            elif anchor and to in texts and anchor[1:] not in anchors(texts[to]):
                findings.append(f"{path}: {to} has no heading {anchor}")
    return findings


def self_test():
    right = "# A page\n## Of `two` parts\n## Of `two` parts\n[a](b.md#b), [c](#of-two-parts-1), [d](https://host/x)\n```\n[e](none)\n```\n"
    cases = [(right, 0), (right + "[f](none.md)\n", 1), (right + "[g](b.md#none)\n", 1), (right + "[h](#of-two-parts-2)\n", 1)]
    for text, expected in cases:
        with scratch_tree() as (root, write):
            write("a.md", text)
            write("b.md", "# B\n")
            found = check_tree(root)
            assert len(found) == expected, (text, expected, found)


if __name__ == "__main__":
    run(check_tree, self_test, "links")
