#!/usr/bin/env python3
"""Fails when an include runs upward, when includes form a cycle, or when a library's header is seen where it must not be.

    check_layers.py [ROOT]       checks the tree; each finding is a line FILE:LINE: message, and the exit status is 1
    check_layers.py --self-test  plants one violation of each rule in a scratch tree and demands that it is found

The rules are ARCHITECTURE.md's. A layer is a top-level folder: base <- kernels <- engine <- server; proto is seen by
server and clients only; clients never see engine. A module is a folder of a layer. MODULES lists the modules of a layer, lowest
first: a file includes its own module and lower ones. Includes are written from the root of the tree, so that a path says its
layer and its module. A header and the source of the same name are one unit; units do not include each other in a circle.
"""

import os
import re

from checks import run, scratch_tree

SOURCES = (".h", ".cc", ".cu", ".cuh", ".inc")

# Layer -> the layers whose headers it may include besides its own. A test sees what the layer it tests sees, and that
# layer; tests/e2e runs the real binaries and talks to them as a client.
BELOW = {
    "base": [],
    "kernels": ["base"],
    "engine": ["base", "kernels"],
    "server": ["base", "kernels", "engine", "proto"],
    "clients": ["base", "proto"],
    "bench": ["base", "kernels", "engine"],
    "tests/base": ["base"],
    "tests/kernels": ["base", "kernels"],
    "tests/simt": ["base", "kernels"],
    "tests/cuda": ["base", "kernels", "engine", "bench", "tests/kernels", "tests/engine/model", "tests/simt"],
    "tests/engine": ["base", "kernels", "engine"],
    "tests/engine/model": ["base", "kernels", "engine", "tests/kernels"],
    "tests/server": ["base", "kernels", "engine", "proto", "server", "tests/engine"],
    "tests/clients": ["base", "proto", "clients"],
    "tests/e2e": ["base", "proto", "clients"],
    "tests/fuzz": ["base", "kernels", "engine", "proto", "server", "clients", "tests/server", "tests/engine"],
}

# Layer -> its modules, lowest first. Modules on one line do not see each other. "." is the folder of the layer itself.
MODULES = {
    "engine": [
        ["checkpoint", "request"],
        ["tokenizer"],
        ["grammar_source", "model", "sampler"],
        ["grammar"],
        ["grammar_host", "snapshot"],
        ["store", "prefix_cache", "speculation"],
        ["session", "scheduler"],
        ["."],
    ],
    "server": [
        ["chat", "convert"],
        ["credentials", "tracing"],
        ["net"],
        ["metrics"],
        ["rpc"],
        ["http", "gateway"],
        ["openai"],
        ["anthropic"],
        ["app"],
    ],
}

# What the layers above a backend may see of it is kernels/*.h; its folders are its own (and its tests').
BACKEND = re.compile(r"kernels/(reference|cpu|cuda)/")

# The recorded data that tests compare with is safetensors: its reader, which knows no model, is seen by any test.
TEST_DATA = re.compile(r"engine/checkpoint/")

# Libraries: a pattern of the header -> a pattern of the files that may include it.
LIBRARIES = [
    ("gRPC", r"(grpc|grpcpp)/", r"(server|clients|tests/(server|clients|e2e|fuzz))/"),
    # A tokenizer.model is a protobuf message of SentencePiece's; no other file of the engine reads one.
    ("protobuf", r"google/protobuf/",
     r"(server|clients|tests/(server|clients|e2e|fuzz))/|engine/tokenizer/sentencepiece_tokenizer\.cc$"),
    ("Prometheus", r"prometheus/", r"(server|tests/server)/"),
    ("Boost", r"boost/", r"(server/http/(http_(connection|exchange|loop|server|stream)|request_head|server_exchange)\.(cc|h)|clients/loadgen/http_stream\.cc|tests/fuzz/web_requests\.cc)$"),
    ("OpenSSL", r"openssl/", r"(server/credentials/|server/http/http_stream\.h$|server/net/client_socket\.cc$|server/app/model_checksums\.cc$|tests/(testing|e2e|server/net|server/credentials)/)"),
    ("libcurl", r"curl/", r"(server/tracing/http_post|clients/cpp/http_call)\.cc$"),
    ("xgrammar", r"xgrammar/", r"(engine/grammar_host/|tests/engine/grammar/probe\.cc$)"),
    # It clashes with gRPC's absl::string_view, so no header may carry it into another translation unit.
    ("SentencePiece", r"sentencepiece", r"engine/tokenizer[^.]*\.cc$"),
    ("PCRE2", r"pcre2", r"engine/tokenizer/regex\.cc$"),
    ("utf8proc", r"utf8proc", r"engine/tokenizer/(nfc|added_token)_stage\.cc$"),
    ("hiredis", r"hiredis/", r"(engine/store/redis|tests/fuzz/redis)[^.]*\.cc$"),
    ("zstd", r"zstd", r"engine/snapshot/[^.]*\.cc$"),
    ("GoogleTest", GOOGLE_TEST := r"(gtest|gmock)/", r"tests/"),
    ("CUDA", r"(cuda|cublas|cooperative_groups)", r"((kernels|bench)/cuda|tests/(simt|cuda))/"),
    ("intrinsics", r"(immintrin|x86intrin|arm_neon)\.h", r"(base|kernels|tests/(base|kernels)|bench)/"),
]

# Headers made by the build, by the layer they belong to.
GENERATED = [
    (re.compile(r"(polysketch/v1/.*|vllm_engine(\.grpc)?|common)\.pb\.h$"), "proto"),
    (re.compile(r"polysketch_build_info\.h$"), "base"),
    (re.compile(r"polysketch_cuda_interface\.h$"), "kernels"),
]

# Generated code of the health and reflection protocols counts as gRPC's.
GRPC_GENERATED = re.compile(r"(health|health_list|reflection)\.(grpc\.)?pb\.h$")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def layer_of(path):
    """The layer of a file or of an included path, or None: the longest name in BELOW or "proto" that contains it."""
    if path.startswith("proto/"):
        return "proto"
    candidates = [layer for layer in BELOW if path.startswith(layer + "/")]
    return max(candidates, key=len, default=None)


def module_of(path):
    """(layer, module) of a path in a layer that has modules, else None."""
    layer = layer_of(path)
    if layer not in MODULES:
        return None
    rest = path[len(layer) + 1:]
    return layer, rest.split("/")[0] if "/" in rest else "."


def level_of(layer, module):
    """How high a module lies in its layer; None for a module that MODULES does not list."""
    return next((level for level, modules in enumerate(MODULES[layer]) if module in modules), None)


def check_modules(path, header):
    """The reason why `path` must not include `header`, both of one layer with modules, or None."""
    layer, module = module_of(path)
    other = module_of(header)
    if level_of(layer, module) is None:
        return f"{layer}/{module} is not in MODULES of tests/lint/check_layers.py"
    if other is None or other[0] != layer or other[1] == module:
        return None
    target = level_of(*other)
    if target is None or target >= level_of(layer, module):
        return f'the include of "{header}" runs upward: {layer}/{module} may not see {layer}/{other[1]}'
    return None


def check_library(path, header):
    for name, pattern, allowed in LIBRARIES:
        if re.match(pattern, header) and not re.match(allowed, path):
            return f"{name} header <{header}> is not seen here"
    if GRPC_GENERATED.search(header) and not re.match(LIBRARIES[0][2], path):
        return f'gRPC header "{header}" is not seen here'
    return None


def check_own(root, path, header):
    """The reason why `path` must not include `header`, a path from the root in quotes, or None."""
    layer = layer_of(path)
    generated = [owner for pattern, owner in GENERATED if pattern.search(header)]
    target = generated[0] if generated else layer_of(header)
    if target is None:
        # tests/*.h: helpers that several areas of tests share.
        if path.startswith("tests/") and os.path.isfile(os.path.join(root, header)):
            return None
        return f'"{header}" is not a path from the root of the tree into a layer'
    if not generated and not os.path.isfile(os.path.join(root, header)):
        return f'"{header}" does not exist'
    if path.startswith("tests/") and TEST_DATA.match(header):
        return None
    nested = path.startswith("tests/") and (layer.startswith(target + "/") or target.startswith(layer + "/"))
    if target != layer and not nested and target not in BELOW[layer]:
        return f'the include of "{header}" runs upward: {layer} may see {", ".join(BELOW[layer]) or "nothing else"}'
    if layer in MODULES and (reason := check_modules(path, header)):
        return reason
    backend = BACKEND.match(header)
    if backend and not path.startswith(("tests/kernels/", "tests/simt/", "tests/cuda/")) and layer != "bench":
        own = BACKEND.match(path)
        selects = re.match(r"kernels/[^/]+$", path)  # kernels/*.cc chooses and makes the backend
        if not selects and not (own and own.group(1) == backend.group(1)):
            return f'"{header}" is private to its backend: include kernels/backend.h'
    return None


def check_include(root, path, header, quoted):
    """The reason why the file `path` must not include `header`, or None."""
    if reason := check_library(path, header):
        return reason
    if GRPC_GENERATED.search(header) or re.match(GOOGLE_TEST, header):
        return None  # a library's, by custom in quotes or in angle brackets
    if not quoted:
        ours = layer_of(header) or any(pattern.search(header) for pattern, _ in GENERATED)
        return f"<{header}> is a header of ours: write it in quotes" if ours else None
    return check_own(root, path, header)


def includes_of(root):
    """(path, line number, header, quoted) of every include of the tree."""
    for top in sorted({layer.split("/")[0] for layer in BELOW}):
        for folder, _, names in sorted(os.walk(os.path.join(root, top))):
            for name in sorted(names):
                path = os.path.relpath(os.path.join(folder, name), root)
                if not name.endswith(SOURCES) or layer_of(path) is None:
                    continue
                with open(os.path.join(root, path), encoding="utf-8") as source:
                    for number, line in enumerate(source, 1):
                        if match := INCLUDE.match(line):
                            yield path, number, match.group(2), match.group(1) == '"'


def unit_of(path):
    """What a header and its source have in common: the path without its ending."""
    return os.path.splitext(path)[0]


def find_cycles(graph):
    """The cycles that a depth-first walk of `graph` closes, each as the list of its units."""
    cycles, done, trail = [], set(), []

    def visit(unit):
        if unit in trail:
            cycles.append(trail[trail.index(unit):] + [unit])
            return
        if unit in done:
            return
        trail.append(unit)
        for other in sorted(graph.get(unit, ())):
            visit(other)
        trail.pop()
        done.add(unit)

    for unit in sorted(graph):
        visit(unit)
    return cycles


def check_tree(root):
    findings = []
    graph = {}
    for path, number, header, quoted in includes_of(root):
        if reason := check_include(root, path, header, quoted):
            findings.append(f"{path}:{number}: {reason}")
        if quoted and layer_of(header) and unit_of(header) != unit_of(path):
            graph.setdefault(unit_of(path), set()).add(unit_of(header))
    for cycle in find_cycles(graph):
        findings.append(f"{cycle[0]}: includes form a cycle: {' -> '.join(cycle)}")
    return findings


# Each case: a file, one include, and whether it is allowed. The tree holds the headers that the includes name.
SELF_TEST_HEADERS = [
    "base/status.h", "kernels/backend.h", "engine/checkpoint/safetensors.h", "kernels/cpu/vec.h",
    "kernels/reference/ops.h", "engine/engine.h", "engine/request/request.h", "engine/scheduler/scheduler.h",
    "server/app/limits.h", "server/net/listener.h", "server/rpc/call.h", "clients/cpp/args.h", "tests/testing.h",
]
SELF_TEST_CASES = [
    ("base/a.cc", '"base/status.h"', True),
    ("base/a.cc", '"kernels/backend.h"', False),
    ("base/a.cc", "<vector>", True),
    ("kernels/a.h", '"engine/engine.h"', False),
    ("kernels/backend.cc", '"kernels/cpu/vec.h"', True),
    ("kernels/cpu/a.cc", '"kernels/cpu/vec.h"', True),
    ("kernels/cpu/a.cc", '"kernels/reference/ops.h"', False),
    ("engine/a.cc", '"kernels/backend.h"', True),
    ("engine/a.cc", '"kernels/cpu/vec.h"', False),
    ("engine/a.cc", '"server/app/limits.h"', False),
    ("engine/a.cc", '"polysketch/v1/polysketch.pb.h"', False),
    ("engine/a.cc", "<grpcpp/grpcpp.h>", False),
    ("engine/a.cc", "<google/protobuf/message.h>", False),
    ("engine/a.cc", "<prometheus/counter.h>", False),
    ("engine/a.cc", "<immintrin.h>", False),
    ("engine/a.cc", "<sentencepiece_processor.h>", False),
    ("engine/a.cc", '"engine/scheduler/scheduler.h"', True),
    ("engine/scheduler/a.h", '"engine/request/request.h"', True),
    ("engine/request/a.h", '"engine/scheduler/scheduler.h"', False),
    ("engine/scheduler/a.h", '"engine/engine.h"', False),
    ("engine/attic/a.h", '"engine/request/request.h"', False),
    ("engine/tokenizer/tokenizer.cc", "<sentencepiece_processor.h>", True),
    ("engine/tokenizer/tokenizer.cc", "<google/protobuf/message.h>", False),
    ("engine/tokenizer/sentencepiece_tokenizer.cc", "<google/protobuf/message.h>", True),
    ("engine/tokenizer/tokenizer.h", "<sentencepiece_processor.h>", False),
    ("server/app/a.cc", "<sentencepiece_processor.h>", False),
    ("server/app/a.cc", '"engine/engine.h"', True),
    ("server/app/a.cc", '"server/rpc/call.h"', True),
    ("server/rpc/a.cc", '"server/net/listener.h"', True),
    ("server/net/a.cc", '"server/rpc/call.h"', False),
    ("server/a.cc", '"server/net/listener.h"', False),
    ("server/http/a.cc", "<boost/beast.hpp>", False),
    ("server/http/http_server.cc", "<boost/beast.hpp>", True),
    ("clients/loadgen/http_stream.cc", "<boost/beast.hpp>", True),
    ("clients/loadgen/runner.cc", "<boost/beast.hpp>", False),
    ("server/app/a.cc", '"clients/cpp/args.h"', False),
    ("server/app/a.cc", '"polysketch/v1/polysketch.grpc.pb.h"', True),
    ("clients/cpp/a.cc", '"polysketch/v1/polysketch.grpc.pb.h"', True),
    ("clients/cpp/a.cc", '"engine/engine.h"', False),
    ("clients/cpp/a.cc", '"server/app/limits.h"', False),
    ("kernels/cpu/b.cc", "<cuda_runtime.h>", False),
    ("tests/engine/a_test.cc", '"server/app/limits.h"', False),
    ("tests/engine/a_test.cc", '"tests/testing.h"', True),
    ("tests/e2e/a_test.cc", '"engine/engine.h"', False),
    ("tests/kernels/a_test.cc", '"engine/checkpoint/safetensors.h"', True),
    ("tests/kernels/a_test.cc", '"engine/engine.h"', False),
    ("tests/engine/a_test.cc", '"gtest/gtest.h"', True),
    ("engine/a.cc", "<gtest/gtest.h>", False),
    ("engine/a.cc", '"../base/status.h"', False),
    ("engine/a.cc", '"status.h"', False),
    ("engine/a.cc", '"base/missing.h"', False),
    ("engine/a.cc", "<base/status.h>", False),
]
# Files with their one include each, and whether they form a cycle.
SELF_TEST_CYCLES = [
    ({"base/a.h": "base/b.h", "base/b.h": "base/c.h"}, False),
    ({"base/a.cc": "base/a.h"}, False),
    ({"base/a.h": "base/b.h", "base/b.h": "base/a.h"}, True),
    ({"base/a.cc": "base/b.h", "base/b.cc": "base/a.h"}, True),
    ({"base/a.h": "base/b.h", "base/b.h": "base/c.h", "base/c.cc": "base/a.h"}, True),
]


def findings_of(includes):
    """Findings in a tree of SELF_TEST_HEADERS and `includes`: path -> what it includes, as written."""
    with scratch_tree() as (root, write):
        names = {header.strip('"') for header in includes.values() if header.startswith('"base/')}
        for name in [*SELF_TEST_HEADERS, *(names - {"base/missing.h"}), *includes]:
            write(name, f"#include {includes[name]}\n" if name in includes else "")
        return check_tree(root)


def self_test():
    cases = [({path: include}, not allowed) for path, include, allowed in SELF_TEST_CASES]
    cases += [({path: f'"{header}"' for path, header in files.items()}, cycle) for files, cycle in SELF_TEST_CYCLES]
    for files, violates in cases:
        findings = findings_of(files)
        assert bool(findings) == violates, (files, violates, findings)


if __name__ == "__main__":
    run(check_tree, self_test, "layers")
