"""Makes models/demo and tests/data from the recorded outputs of the authors' code (../shared).

tests/data/goldens/CASE is a model folder with golden.safetensors: tokens I32 [2, n], logits F32 [2, n, V], next_logprobs
F32 [2, n - 1], attn_out_layer0 F32 [2, n, D]. tests/data/attention/KIND.safetensors holds inputs (F32) and out (F64) of an
attention function alone, and for the first sequence (F32) the cotangent g and the gradients grad_* of sum(out * g); `block`
and `power` are I32 [1], sketch1 and sketch2 F64. tests/data/decay_gate and tests/data/polynomial_square are computed,
not recorded (decay_gate_goldens.py, polynomial_square_goldens.py); --only-computed makes these alone.
"""

import argparse
import json
import pathlib
import shutil

import numpy as np

from polysketch_tools import errors, safetensors
from polysketch_tools.convert import convert

from decay_gate_goldens import make_decay_gate
from polynomial_square_goldens import make_polynomial_square

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def make_demo(source: pathlib.Path, out: pathlib.Path) -> None:
    """Makes models/demo. Its README.md is kept."""
    readme = (out / "README.md").read_bytes() if (out / "README.md").exists() else None
    convert(
        source / "ckpt.msgpack",
        source / "config.json",
        source / "tokenizer.model",
        out,
        overwrite=True,
    )
    if readme is not None:
        (out / "README.md").write_bytes(readme)
    text = json.loads((source / "recorded.json").read_text())["greedy"]
    arrays = np.load(source / "recorded.npz")
    recorded = {
        "about": "The most likely continuation, token by token, as the authors' JAX code computes it; margins: distance to"
        " the second best log-probability.",
        "prompt": text["prompt"],
        "prompt_tokens": arrays["prompt_tokens"].tolist(),
        "text": text["text"],
        "tokens": arrays["greedy_tokens"].tolist(),
        "logprobs": _decimals(arrays["greedy_logprobs"]),
        "margins": _decimals(arrays["greedy_margins"]),
    }
    fields = [
        f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}"
        for name, value in recorded.items()
    ]
    (out / "recorded.json").write_text("{\n" + ",\n".join(fields) + "\n}\n")


def _decimals(values: np.ndarray) -> list[float]:
    """Returns the shortest decimals that read back as the same float32."""
    return [float(str(value)) for value in values]


def make_goldens(source: pathlib.Path, out: pathlib.Path) -> None:
    for case in sorted(path.parent for path in source.glob("*/golden.npz")):
        convert(case / "ckpt.msgpack", case / "config.json", None, out / case.name, overwrite=True)
        arrays = np.load(case / "golden.npz")
        safetensors.write(
            out / case.name / "golden.safetensors", {name: arrays[name] for name in sorted(arrays)}
        )


def make_attention(source: pathlib.Path, out: pathlib.Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for path in sorted(source.glob("*.npz")):
        arrays = np.load(path)
        tensors = {}
        for name in sorted(arrays):
            array = arrays[name]
            if name == "g" or name.startswith("grad_"):
                # One sequence of each kind, as float32: the rounding is far below the tolerance of the tests.
                array = array[:1].astype(np.float32)
            tensors[name] = array.astype(np.int32).reshape(1) if array.dtype == np.int64 else array
        safetensors.write(out / (path.stem + ".safetensors"), tensors)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="tests/tools/make-golden-data",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--shared", type=pathlib.Path, default=_ROOT.parent / "shared", help="default: ../shared"
    )
    parser.add_argument(
        "--out", type=pathlib.Path, default=_ROOT, help="root of the tree to write into"
    )
    parser.add_argument(
        "--only-computed",
        action="store_true",
        help="tests/data/decay_gate and tests/data/polynomial_square alone; reads nothing",
    )
    args = parser.parse_args(argv)
    make_decay_gate(args.out / "tests/data/decay_gate")
    make_polynomial_square(args.out / "tests/data/polynomial_square")
    if args.only_computed:
        return
    make_demo(args.shared / "models/demo", args.out / "models/demo")
    make_goldens(args.shared / "goldens", args.out / "tests/data/goldens")
    make_attention(args.shared / "goldens/attention", args.out / "tests/data/attention")


if __name__ == "__main__":
    errors.run(main)
