#!/usr/bin/env python3
"""Fails when a module has no test in tests/sanitized.txt, or when a test there is none.

    check_sanitized.py [ROOT]       checks the tree; each finding is a line, and the exit status is 1
    check_sanitized.py --self-test  plants one fault of each kind in a scratch tree and demands that it is found

A module is a folder with sources of base, kernels, engine, server or clients. It needs a test under ASan and, below the server, one
under TSan if its sources name threads or what they share.
"""

import os
import re

from checks import run, scratch_tree

LAYERS = ("base", "kernels", "engine", "server", "clients")
SHARED = re.compile(r"std::(thread|jthread|mutex|shared_mutex|condition_variable|atomic)\b|\bThreadPool\b")
# What the emulation of a GPU runs on one thread.
ONE_THREAD = {"kernels/cuda"}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def modules(root):
    """Module -> whether threads share something of it."""
    found = {}
    for layer in LAYERS:
        for folder, folders, names in os.walk(os.path.join(root, layer)):
            folders[:] = [one for one in folders if one != "python"]
            sources = [name for name in names if name.endswith((".cc", ".cu"))]
            if not sources:
                continue
            module = "/".join(os.path.relpath(folder, root).split(os.sep)[:2])
            shared = any(SHARED.search(read(os.path.join(folder, name)))
                         for name in names if name.endswith((".cc", ".cu", ".h")))
            found[module] = found.get(module, False) or (shared and module not in ONE_THREAD)
    return found


def tests(root):
    """The names of the tests that CMake registers, of e2e and emulated ones by what their functions make of them."""
    found = set()
    forms = {"polysketch_test": "{}", "polysketch_e2e_test": "e2e_{}_test", "polysketch_cuda_test": "simt_{}"}
    for folder, _, names in os.walk(os.path.join(root, "tests")):
        if "CMakeLists.txt" not in names:
            continue
        text = read(os.path.join(folder, "CMakeLists.txt"))
        for function, name in re.findall(r"\b(polysketch_(?:e2e_|cuda_)?test)\(\s*([A-Za-z0-9_]+)", text):
            found.add(forms[function].format(name))
    return found


def check(root):
    findings, listed = [], set()
    known_modules, known_tests = modules(root), tests(root)
    for number, line in enumerate(read(os.path.join(root, "tests", "sanitized.txt")).splitlines(), 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        where = f"tests/sanitized.txt:{number}: "
        if len(words) != 3 or words[1] not in ("asan", "tsan"):
            findings.append(where + f"expected MODULE asan|tsan TEST, found {line}")
            continue
        module, preset, test = words
        if module not in known_modules:
            findings.append(where + f"there is no module {module}")
        if test not in known_tests:
            findings.append(where + f"there is no test {test}")
        if preset == "tsan" and module.startswith(("server", "clients")):
            findings.append(where + f"the preset tsan does not build {module}")
        listed.add((module, preset))
    for module, shared in sorted(known_modules.items()):
        if (module, "asan") not in listed:
            findings.append(f"tests/sanitized.txt: {module} has no test under asan")
        if shared and not module.startswith(("server", "clients")) and (module, "tsan") not in listed:
            findings.append(f"tests/sanitized.txt: {module}, which threads share, has no test under tsan")
    return findings


def self_test():
    with scratch_tree() as (root, write):
        write("base/a.cc", "int a;\n")
        write("engine/store/b.cc", "std::mutex b;\n")
        write("server/net/c.cc", "std::thread c;\n")
        write("tests/CMakeLists.txt", "polysketch_test(a_test a.cc)\npolysketch_e2e_test(c 120)\n")
        right = "base asan a_test\nengine/store asan a_test\nengine/store tsan a_test\nserver/net asan e2e_c_test\n"
        write("tests/sanitized.txt", right)
        assert check(root) == [], check(root)
        for wrong, what in ((right.replace("base asan a_test\n", ""), "base has no test under asan"),
                            (right.replace("engine/store tsan a_test\n", ""), "engine/store, which threads share"),
                            (right + "base asan gone_test\n", "no test gone_test"),
                            (right + "gone asan a_test\n", "no module gone"),
                            (right + "base msan a_test\n", "expected MODULE"),
                            (right + "server/net tsan a_test\n", "does not build server/net")):
            write("tests/sanitized.txt", wrong)
            findings = check(root)
            assert len(findings) == 1 and what in findings[0], (what, findings)


if __name__ == "__main__":
    run(check, self_test, "sanitized")
