"""Converts a GGUF file into a folder as Hugging Face has it, which the server reads (docs/model-format.md)."""

import argparse
import json
import pathlib
import shutil
import sys

import numpy as np

from polysketch_tools import errors, gguf_tokenizer, output_folder, safetensors
from polysketch_tools.errors import ToolError
from polysketch_tools.gguf import Gguf
from polysketch_tools.gguf_model import Model

# Storage of the tensors, as commands name it, and torch's name.
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def convert(
    source: pathlib.Path,
    out: pathlib.Path,
    *,
    dtype: str = "f32",
    notices: list[pathlib.Path] | None = None,
    overwrite: bool = False,
    shard_bytes: int = output_folder.DEFAULT_SHARD_BYTES,
) -> None:
    """The same file makes the same bytes on every machine. notices: files that are copied into the folder."""
    file = Gguf(source)
    model = Model(file)
    tokenizer = gguf_tokenizer.read(file, model.vocab_size)
    ids = tokenizer.ids()
    # transformers has defaults of its own for an id that a config does not name.
    config_ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None} | ids
    kind = safetensors.DTYPES[dtype.upper()]
    names = sorted(model.tensors)
    stored: dict[str, output_folder.Parts] = {name: {name: (kind, model.tensors[name][1])} for name in names}

    def chunks(name: str):
        values = model.values(name)
        if np.abs(values).max(initial=0) > _largest(kind):
            raise ToolError(f"tensor {name}: values beyond the range of {dtype}; use f32 or bf16")
        yield name, values

    with output_folder.atomic_folder(out, overwrite) as folder:
        what = f"writing {out}"
        output_folder.write_tensors(folder, stored, chunks, shard_bytes=shard_bytes, what=what, form="pt")
        _write(folder / "config.json", model.config(DTYPES[dtype], config_ids))
        _write(folder / "generation_config.json", ids)
        _write(folder / "tokenizer.json", tokenizer.json(), ordered=False)
        _write(folder / "tokenizer_config.json", tokenizer.config())
        if template := tokenizer.chat_template():
            (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        else:
            print(f"{source} has no chat template: the server will complete text and not chat", file=sys.stderr)
        for notice in notices or []:
            shutil.copyfile(notice, folder / notice.name)
        output_folder.write_checksums(folder)


def _largest(kind: np.dtype) -> float:
    return 65504.0 if kind == np.float16 else float(np.finfo(np.float32).max)


def _write(path: pathlib.Path, value: dict, ordered: bool = True) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=1, sort_keys=ordered)
    path.write_text(text + "\n", encoding="utf-8")


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="tools/convert", description=__doc__, epilog=errors.EXIT_STATUSES
    )
    parser.add_argument("--gguf", type=pathlib.Path, required=True, help="the GGUF file")
    output_folder.add_options(parser, DTYPES, "f32", ", which has the values that ggml computes with, bit for bit")
    parser.add_argument(
        "--notice",
        type=pathlib.Path,
        action="append",
        metavar="FILE",
        help="a file that is copied into the folder, as a licence. Repeatable",
    )
    args = parser.parse_args(argv)
    convert(args.gguf, args.out, dtype=args.dtype, notices=args.notice, **output_folder.how(args))


if __name__ == "__main__":
    errors.run(main)
