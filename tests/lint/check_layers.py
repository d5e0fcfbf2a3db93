#!/usr/bin/env python3
"""Fails when an include runs upward, or when a header of a library is seen by a layer that must not know it.

    check_layers.py [ROOT]     checks the tree; each finding is a line FILE:LINE: message, and the exit status is 1
    check_layers.py --self-test  plants one violation of each rule in a scratch tree and demands that it is found

The rules are ARCHITECTURE.md's: base <- kernels <- engine <- server; proto is seen by server and clients only; clients
never see engine. Includes are written from the root of the tree, so that a path says its layer.
"""

import os
import re
import sys
import tempfile

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
    "tests/cuda": ["base", "kernels", "engine", "tests/kernels", "tests/model", "tests/simt"],
    "tests/engine": ["base", "kernels", "engine"],
    "tests/model": ["base", "kernels", "engine", "tests/kernels"],
    "tests/server": ["base", "kernels", "engine", "proto", "server"],
    "tests/clients": ["base", "proto", "clients"],
    "tests/e2e": ["base", "proto", "clients"],
}

# What the layers above a backend may see of it is kernels/*.h; its folders are its own (and its tests').
BACKEND = re.compile(r"kernels/(reference|cpu|cuda)/")

# The recorded data that tests compare with is safetensors: its reader, which knows no model, is seen by any test.
TEST_DATA = re.compile(r"engine/checkpoint/")

# Libraries: a pattern of the header -> a pattern of the files that may include it.
LIBRARIES = [
    ("gRPC", r"(grpc|grpcpp)/", r"(server|clients|tests/(server|clients|e2e))/"),
    ("protobuf", r"google/protobuf/", r"(server|clients|tests/(server|clients|e2e))/"),
    ("Prometheus", r"prometheus/", r"(server|tests/server)/"),
    ("civetweb", r"civetweb|CivetServer", r"server/http_server\.cc$"),
    # It clashes with gRPC's absl::string_view, so no header may carry it into another translation unit.
    ("SentencePiece", r"sentencepiece", r"engine/tokenizer[^.]*\.cc$"),
    ("hiredis", r"hiredis/", r"engine/store/redis[^.]*\.cc$"),
    ("zstd", r"zstd", r"engine/snapshot/[^.]*\.cc$"),
    ("GoogleTest", GOOGLE_TEST := r"(gtest|gmock)/", r"tests/"),
    ("CUDA", r"(cuda|cublas|cooperative_groups)", r"(kernels/cuda|tests/(simt|cuda))/"),
    ("intrinsics", r"(immintrin|x86intrin|arm_neon)\.h", r"(base|kernels|tests/(base|kernels)|bench)/"),
]

# Headers made by the build, by the layer they belong to.
GENERATED = [
    (re.compile(r"polysketch/v1/.*\.pb\.h$"), "proto"),
    (re.compile(r"polysketch_build_info\.h$"), "base"),
]

# Generated code of the health and reflection protocols counts as gRPC's.
GRPC_GENERATED = re.compile(r"(health|reflection)\.(grpc\.)?pb\.h$")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def layer_of(path):
    """The layer of a file or of an included path, or None: the longest name in BELOW or "proto" that contains it."""
    if path.startswith("proto/"):
        return "proto"
    candidates = [layer for layer in BELOW if path.startswith(layer + "/")]
    return max(candidates, key=len, default=None)


def check_include(root, path, header, quoted):
    """The reason why the file `path` must not include `header`, or None."""
    layer = layer_of(path)
    for name, pattern, allowed in LIBRARIES:
        if re.match(pattern, header) and not re.match(allowed, path):
            return f"{name} header <{header}> is not seen here"
    if GRPC_GENERATED.search(header):
        return None if re.match(LIBRARIES[0][2], path) else f'gRPC header "{header}" is not seen here'
    if re.match(GOOGLE_TEST, header):
        return None  # by custom in quotes or in angle brackets
    generated = [owner for pattern, owner in GENERATED if pattern.search(header)]
    target = generated[0] if generated else layer_of(header)
    if not quoted:
        return f"<{header}> is a header of ours: write it in quotes" if target else None
    if target is None:
        # tests/*.h: helpers that several areas of tests share.
        if path.startswith("tests/") and os.path.isfile(os.path.join(root, header)):
            return None
        return f'"{header}" is not a path from the root of the tree into a layer'
    if not generated and not os.path.isfile(os.path.join(root, header)):
        return f'"{header}" does not exist'
    if path.startswith("tests/") and TEST_DATA.match(header):
        return None
    if target != layer and target not in BELOW[layer]:
        return f'the include of "{header}" runs upward: {layer} may see {", ".join(BELOW[layer]) or "nothing else"}'
    backend = BACKEND.match(header)
    if backend and not path.startswith(("tests/kernels/", "tests/simt/", "tests/cuda/")) and layer != "bench":
        own = BACKEND.match(path)
        selects = re.match(r"kernels/[^/]+$", path)  # kernels/*.cc chooses and makes the backend
        if not selects and not (own and own.group(1) == backend.group(1)):
            return f'"{header}" is private to its backend: include kernels/backend.h'
    return None


def check_tree(root):
    findings = []
    for top in sorted({layer.split("/")[0] for layer in BELOW}):
        for folder, _, names in sorted(os.walk(os.path.join(root, top))):
            for name in sorted(names):
                path = os.path.relpath(os.path.join(folder, name), root)
                if not name.endswith(SOURCES) or layer_of(path) is None:
                    continue
                with open(os.path.join(root, path), encoding="utf-8") as source:
                    for number, line in enumerate(source, 1):
                        match = INCLUDE.match(line)
                        if not match:
                            continue
                        reason = check_include(root, path, match.group(2), match.group(1) == '"')
                        if reason:
                            findings.append(f"{path}:{number}: {reason}")
    return findings


# Each case: a file, one include, and whether it is allowed. The tree holds the headers that the includes name.
SELF_TEST_HEADERS = [
    "base/status.h", "kernels/backend.h", "engine/checkpoint/safetensors.h", "kernels/cpu/vec.h", "kernels/reference/ops.h", "engine/engine.h",
    "server/limits.h", "clients/cpp/args.h", "tests/testing.h",
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
    ("engine/a.cc", '"server/limits.h"', False),
    ("engine/a.cc", '"polysketch/v1/polysketch.pb.h"', False),
    ("engine/a.cc", "<grpcpp/grpcpp.h>", False),
    ("engine/a.cc", "<google/protobuf/message.h>", False),
    ("engine/a.cc", "<prometheus/counter.h>", False),
    ("engine/a.cc", "<immintrin.h>", False),
    ("engine/a.cc", "<sentencepiece_processor.h>", False),
    ("engine/tokenizer/tokenizer.cc", "<sentencepiece_processor.h>", True),
    ("engine/tokenizer/tokenizer.h", "<sentencepiece_processor.h>", False),
    ("server/a.cc", "<sentencepiece_processor.h>", False),
    ("server/a.cc", '"engine/engine.h"', True),
    ("server/a.cc", "<civetweb.h>", False),
    ("server/http_server.cc", "<civetweb.h>", True),
    ("server/a.cc", '"clients/cpp/args.h"', False),
    ("server/a.cc", '"polysketch/v1/polysketch.grpc.pb.h"', True),
    ("clients/cpp/a.cc", '"polysketch/v1/polysketch.grpc.pb.h"', True),
    ("clients/cpp/a.cc", '"engine/engine.h"', False),
    ("clients/cpp/a.cc", '"server/limits.h"', False),
    ("kernels/cpu/b.cc", "<cuda_runtime.h>", False),
    ("tests/engine/a_test.cc", '"server/limits.h"', False),
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


def self_test():
    for path, include, allowed in SELF_TEST_CASES:
        with tempfile.TemporaryDirectory() as root:
            for name in [*SELF_TEST_HEADERS, path]:
                os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write(f"#include {include}\n" if name == path else "")
            findings = check_tree(root)
            if bool(findings) == allowed:
                print(f"self-test: {path} with {include}: expected {'no finding' if allowed else 'a finding'}, "
                      f"found {findings}")
                return 1
    print(f"self-test: {len(SELF_TEST_CASES)} cases")
    return 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    root = arguments[0] if arguments else "."
    findings = check_tree(root)
    print("\n".join(findings) or "layers: clean")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
