#!/usr/bin/env python3
"""Fails when a header does not compile alone, because it uses what it does not include.

    check_headers.py ROOT BUILD [--changed|HEADER...]  compiles headers of the tree as they are built in the folder BUILD; each header
                                                       that fails is shown with the first error, and the exit status is 1
    check_headers.py --self-test                       plants faults in a scratch tree and demands that they are found

Without names these are the headers that no other check compiles first: a header that the source of its name includes before
anything else is proven by that source (clang-tidy reads sources without precompiled headers). --changed: of these, the ones that
lead, by includes, to a file that standard input names, one a line. A header is compiled with the options of a source beside it,
without precompiled headers; one that asks for the instruction set, once for each that has code of its own.
"""

import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys

from checks import scratch_tree

LAYERS = ("base", "kernels", "engine", "server", "clients", "bench")
# nvcc or the emulation compiles these, as parts of sources.
ELSEWHERE = re.compile(r"(kernels|bench)/cuda/")
# Of the instruction sets of an op file: between them they select every branch of the headers.
ISAS = ("avx512vnni", "avxvnni")
# Options that take the next word, or that say where the output goes; sanitizers and optimisation change no error.
DROPPED_WITH_WORD = ("-o", "-MF", "-MT", "-MQ", "-include")
DROPPED = re.compile(r"-(c|MD|MMD|Winvalid-pch|O\w?|g\d?|f(no-)?sanitize.*|W.*)$")


def first_include(path):
    with open(path, encoding="utf-8") as source:
        found = re.search(r'^\s*#\s*include\s*["<]([^">]+)[">]', source.read(), re.MULTILINE)
    return found and found.group(1)


def unproven_headers(root):
    """The headers of LAYERS that are not the first include of the source of their name."""
    for layer in LAYERS:
        for folder, folders, names in os.walk(os.path.join(root, layer)):
            folders.sort()
            for name in sorted(names):
                header = os.path.relpath(os.path.join(folder, name), root)
                source = os.path.join(root, header[:-1] + "cc")
                if not name.endswith(".h") or ELSEWHERE.match(header):
                    continue
                if not os.path.exists(source) or first_include(source) != header:
                    yield header


def with_includes(root, path):
    """The file and what it includes of the tree, to any depth."""
    seen, waiting = set(), [path]
    while waiting:
        path = waiting.pop()
        if path in seen or not os.path.exists(os.path.join(root, path)):
            continue
        seen.add(path)
        with open(os.path.join(root, path), encoding="utf-8") as source:
            waiting += re.findall(r'^\s*#\s*include\s*"([^"]+)"', source.read(), re.MULTILINE)
    return seen


def affected_headers(root, changed):
    """The unproven headers that are one of the files `changed`, or include one."""
    return [header for header in unproven_headers(root) if changed & with_includes(root, header)]


def options_of(command):
    """The options of a compile command that decide what a header means, after the compiler."""
    words = shlex.split(command)
    words = words[next(i for i, word in enumerate(words) if re.search(r"(\+\+|clang|gcc)[-0-9.]*$", os.path.basename(word))):]
    options, skip = words[:1], False
    for word in words[1:]:
        if skip or word in DROPPED_WITH_WORD:
            skip = not skip
        elif word.startswith("-") and not DROPPED.match(word) or options[-1] in ("-isystem", "-I", "-D"):
            options.append(word)
    return options


def isa_of(options):
    return next((option.split("=")[1] for option in options if option.startswith("-DPS_ISA=")), None)


class Commands:
    """Which options a header is compiled with."""

    def __init__(self, root, build):
        self.root = root
        self.of_folder = {}
        with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
            for entry in json.load(file):
                source = os.path.relpath(os.path.join(entry["directory"], entry["file"]), root)
                if not source.startswith(LAYERS):
                    continue
                options = options_of(entry["command"])
                if isa_of(options) in (None, *ISAS):
                    kept = self.of_folder.setdefault(os.path.dirname(source), {})
                    # Of the targets of a folder, the one that sees most libraries.
                    if len(options) > len(kept.get(isa_of(options), (None, []))[1]):
                        kept[isa_of(options)] = (entry["directory"], options)

    def of_header(self, header):
        folder = os.path.dirname(header)
        while folder and folder not in self.of_folder:
            folder = os.path.dirname(folder)
        found = self.of_folder.get(folder, {})
        commands = [found[isa] for isa in (*ISAS, None) if isa in found]
        with open(os.path.join(self.root, header), encoding="utf-8") as file:
            asks = "PS_ISA_" in file.read()
        return commands[:len(ISAS) if asks else 1]


def compile_alone(root, header, command):
    """The first error of a source that only includes the header, or None."""
    folder, options = command
    run = subprocess.run([*options, "-w", "-I", root, "-fsyntax-only", "-x", "c++", "-"], cwd=folder, text=True,
                         input=f'#include "{header}"\n', capture_output=True, check=False)
    if run.returncode == 0:
        return None
    error = next((line for line in run.stderr.splitlines() if "error:" in line), run.stderr.strip())
    return f"{header} does not compile alone: {error}"


def check(root, build, headers=None):
    root = os.path.realpath(root)
    commands = Commands(root, os.path.realpath(build))
    work, findings = [], []
    for header in unproven_headers(root) if headers is None else headers:
        found = commands.of_header(header)
        if not found:
            findings.append(f"{header}: no source beside it is compiled")
        work += [(header, command) for command in found]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        findings += filter(None, pool.map(lambda one: compile_alone(root, *one), work))
    return findings, len(work)


def self_test():
    with scratch_tree() as (root, write):
        write("base/a.cc", '#include "base/a.h"\n#include <string>\n')
        write("base/a.h", "#pragma once\nstd::string A();\n")  # a.cc shows it
        write("base/b.h", "#pragma once\n#ifdef WITH_B\ninline int B() { return 1; }\n#endif\n")
        write("base/c.h", '#pragma once\n#include "base/b.h"\ninline int C() { return B(); }\n')
        write("build/pch.h", "#include <string>\n")
        command = f"ccache c++ -DWITH_B -Winvalid-pch -include {root}/build/pch.h -O2 -g1 -MD -MF a.d -o a.o -c {root}/base/a.cc"
        write("build/compile_commands.json",
              json.dumps([{"directory": f"{root}/build", "file": f"{root}/base/a.cc", "command": command}]))
        build = os.path.join(root, "build")
        assert check(root, build) == ([], 2), check(root, build)
        write("base/c.h", "#pragma once\ninline int C() { return B(); }\n")
        write("base/d.h", "#pragma once\ninline std::string D() { return {}; }\n")
        findings, _ = check(root, build)
        assert len(findings) == 2 and "base/c.h" in findings[0] and "base/d.h" in findings[1], findings
        findings, compiled = check(root, build, ["base/a.h"])
        assert compiled == 1 and len(findings) == 1 and "base/a.h does not compile alone" in findings[0], findings
        found = [affected_headers(root, {name}) for name in ("base/b.h", "base/d.h", "base/a.cc")]
        assert found == [["base/b.h"], ["base/d.h"], []], found
        write("base/c.h", '#pragma once\n#include "base/b.h"\n')
        assert affected_headers(root, {"base/b.h"}) == ["base/b.h", "base/c.h"]


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        print("headers: the self-test passes")
        sys.exit(0)
    if len(sys.argv) < 3:
        print(__doc__.strip(), file=sys.stderr)
        sys.exit(2)
    NAMES = sys.argv[3:] or None
    if NAMES == ["--changed"]:
        NAMES = affected_headers(sys.argv[1], set(sys.stdin.read().split()))
    FOUND, COMPILED = check(sys.argv[1], sys.argv[2], NAMES)
    print("\n".join(FOUND) if FOUND else f"headers: {COMPILED} compile alone")
    sys.exit(1 if FOUND else 0)
