#!/usr/bin/env python3
"""Fails when a limit of the server is not in the section "Limits" of docs/operations.md, or is there and not in the code.

    check_limits.py [ROOT]       checks the tree; each finding is a line, and the exit status is 1
    check_limits.py --self-test  plants one fault of each kind in a scratch tree and demands that it is found

Its table "| flag | ..." has every flag of server/app/flags.cc that is a number, a size or a time, but for those of NO_LIMITS. A link
[VALUE](../FILE#kName) has the value of a constant as the file has it, and every constant kMax... of server, engine and base, but for
INNER, has a link. Metrics that the section names are those of docs/metrics.md.
"""

import os
import re

from checks import run, scratch_tree

NO_LIMITS = {"threads", "otlp-sample-percent", "prefix-cache-min-tokens", "prefix-cache-every"}
# Constants that no client, file or fault meets: bounds of arithmetic, of formats and of what a part of the server asks of another.
INNER = {
    "kMax", "kMaxShift", "kMaxInt", "kMaxInt32", "kMaxInt64", "kMaxRank", "kMaxNameBytes", "kMaxRules", "kMaxSections", "kMaxAim", "kMaxOver",
    "kMaxTimes", "kMaxDraftRows", "kMaxSamplingThreads", "kMaxAnswers", "kMaxAnswerBytes", "kMaxSourceMessage", "kMaxTokensOfMessage",
    "kMaxUnrolled", "kMaxExclusionDepth", "kMaxIndentation", "kMaxLeastCharacters", "kMaxNameDepth", "kMaxWindowLog", "kMaxKept",
    "kMaxHeldBytes", "kMaxThreadName", "kMaxShown", "kMaxQuotedPath", "kMaxLogged", "kMaxFill", "kMaxControlFrame", "kMaxPerMinute", "kMaxLength", "kMaxPartBytes",
}
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
TIMES = {"milliseconds": "ms", "seconds": "s", "minutes": "min", "hours": "h"}
LINK = re.compile(r"\[([^\]]+)\]\(\.\./([\w./-]+)#(k[A-Z]\w*)\)")
CONSTANT = re.compile(r"constexpr ([A-Za-z0-9_:]+) (k[A-Z]\w*)(?: = ([^;]+)|\{([^;]*)\});")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def section(root):
    text = read(os.path.join(root, "docs", "operations.md"))
    found = re.search(r"^## Limits\n(.*?)(?=^## )", text, re.M | re.S)
    return found.group(1) if found else ""


def rows(text, head):
    """The cells of the rows of the table whose head begins so."""
    found = re.search(r"^\| " + re.escape(head) + r" \|.*\n\|[-| ]+\n((?:\|.*\n)*)", text, re.M)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found.group(1).splitlines()] if found else []


def shown(kind, value, braced):
    """A constant as a table shows it, in the units that fit; None for what is no number."""
    text = braced if braced is not None else value
    text = re.sub(r"\b(?:u?int\d+_t|size_t|off_t|uintmax_t)\{(\d[\d']*)\}", r"\1", text).replace("'", "")
    text = re.sub(r"(?<=\d)[fuUlL]+\b", "", text)
    if not re.fullmatch(r"[\d.\s<*+()-]+", text):
        return None
    number = eval(text)  # digits and operators alone
    if time := TIMES.get(kind.rsplit("::", 1)[-1]):
        return {f"{number:,} {time}"}
    forms = {f"{number:,}", f"{number:g}"}
    return forms | {f"{number // size:,} {unit}" for unit, size in UNITS.items() if unit and number % size == 0 and number >= size}


def constants(root):
    """File -> name -> the forms of its value."""
    found = {}
    for layer in ("base", "engine", "server"):
        for folder, _, names in os.walk(os.path.join(root, layer)):
            for name in names:
                if name.endswith((".h", ".cc")):
                    path = os.path.join(folder, name)
                    of_file = {one: shown(kind, value, braced) for kind, one, value, braced in
                               ((m[1], m[2], m[3] or "", m[4]) for m in CONSTANT.finditer(read(path)))}
                    found[os.path.relpath(path, root)] = of_file
    return found


def check(root):
    text, findings = section(root), []
    flags = re.findall(r'^ +\{"([a-z0-9-]+)", (?:kInteger|kBytes|kDuration),', read(os.path.join(root, "server/app/flags.cc")), re.M)
    listed = set()
    for row in rows(text, "flag"):
        listed |= set(re.findall(r"`--([a-z0-9-]+)`", row[0]))
        if len(row) < 3 or not row[-1]:
            findings.append(f"docs/operations.md: Limits: {row[0]} has no metric")
    findings += [f"docs/operations.md: Limits: --{flag} is missing" for flag in flags if flag not in listed | NO_LIMITS]
    findings += [f"docs/operations.md: Limits: there is no flag --{flag}" for flag in sorted(listed) if flag not in flags]

    known, stated = constants(root), set()
    for value, file, name in LINK.findall(text):
        stated.add((file, name))
        if name not in known.get(file, {}):
            findings.append(f"docs/operations.md: Limits: {file} has no {name}")
        elif (forms := known[file][name]) is not None and value not in forms:
            findings.append(f"docs/operations.md: Limits: {name} is {sorted(forms)}, found {value}")
    for file, names in sorted(known.items()):
        for name in names:
            if re.match("kMax[A-Z]|kMax$", name) and name not in INNER and (file, name) not in stated:
                findings.append(f"docs/operations.md: Limits: {file} `{name}` is missing")
    metrics = read(os.path.join(root, "docs", "metrics.md"))
    for name in sorted(set(re.findall(r"`(polysketch_[a-z_]+)", text))):
        if f"`{name}`" not in metrics:
            findings.append(f"docs/operations.md: Limits: docs/metrics.md has no {name}")
    return findings


def self_test():
    with scratch_tree() as (root, write):
        flags = '    {"max-queue", kInteger, "N",\n    {"threads", kInteger, "N",\n    {"model", kText, "DIR",\n'
        code = "constexpr size_t kMaxThings = size_t{2} << 20;\nconstexpr std::chrono::seconds kMaxWait{60};\n"
        right = ("## Limits\n\n| flag | beyond it | metric |\n|---|---|---|\n"
                 "| `--max-queue` | a | `polysketch_max_queue` |\n\n"
                 "| limits | beyond one |\n|---|---|\n"
                 "| things [2 MiB](../server/a.h#kMaxThings), waits [60 s](../server/a.h#kMaxWait) | no |\n\n## Next\n")
        write("server/app/flags.cc", flags)
        write("server/a.h", code)
        write("docs/metrics.md", "| `polysketch_max_queue` |\n")
        write("docs/operations.md", right)
        assert check(root) == [], check(root)
        for old, new, what in (("`--max-queue`", "`--max-queues`", "--max-queue is missing"),
                               ("2 MiB", "3 MiB", "found 3 MiB"), ("60 s", "61 s", "found 61 s"),
                               (", waits [60 s](../server/a.h#kMaxWait)", "", "`kMaxWait` is missing"),
                               ("#kMaxThings", "#kMaxThing", "has no kMaxThing"),
                               ("`polysketch_max_queue`", "`polysketch_queue`", "has no polysketch_queue"),
                               ("| `polysketch_max_queue` |", "| |", "has no metric")):
            write("docs/operations.md", right.replace(old, new))
            findings = check(root)
            assert any(what in finding for finding in findings), (what, findings)


if __name__ == "__main__":
    run(check, self_test, "limits")
