"""Writes the files of a folder that appears whole or not at all: tensors in shards, checksums."""

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from polysketch_tools import safetensors
from polysketch_tools.errors import ToolError
from polysketch_tools.progress import Progress

DEFAULT_SHARD_BYTES = 4 << 30

# The arrays that store a tensor, by name, with their types and shapes: one, or integers and scales.
Parts = dict[str, tuple[np.dtype, tuple[int, ...]]]


@contextlib.contextmanager
def atomic_folder(out: pathlib.Path, overwrite: bool) -> Iterator[pathlib.Path]:
    """Yields a new folder beside `out`. It replaces `out` at the end, and is deleted if the body fails."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        if not overwrite:
            raise ToolError(f"{out} exists and is not an empty folder (--overwrite replaces it)")
        if not (out.is_dir() and (out / "config.json").exists()):
            raise ToolError(
                f"{out}: --overwrite replaces model folders only, and this has no config.json"
            )
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.parent / f".{out.name}.{os.getpid()}.tmp"
    temporary.mkdir()
    try:
        yield temporary
        if out.exists():
            shutil.rmtree(out)
        temporary.rename(out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def add_options(parser: argparse.ArgumentParser, dtypes=(), default: str | None = None, dtype_help: str = "") -> None:
    """Adds the options of the folder that is written: out, dtype if there are dtypes, max_shard_bytes, overwrite."""
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the new model folder")
    if dtypes:
        parser.add_argument("--dtype", choices=dtypes, default=default, help=f"storage of the tensors (default {default}{dtype_help})")
    parser.add_argument(
        "--max-shard-bytes", type=int, default=DEFAULT_SHARD_BYTES, help="default 4 GiB"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing model folder")


def how(args: argparse.Namespace) -> dict[str, int | bool]:
    """The options of add_options as functions that write a folder take them."""
    return {"overwrite": args.overwrite, "shard_bytes": args.max_shard_bytes}


def split_shards(sizes: dict[str, int], limit: int) -> list[list[str]]:
    """Divides tensor names, in order, into shards of at most `limit` bytes. A larger tensor is one shard."""
    shards, used = [[]], 0
    for name, size in sizes.items():
        if shards[-1] and used + size > limit:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += size
    return shards


def write_tensors(
    folder: pathlib.Path,
    stored: dict[str, Parts],
    chunks: Callable[[str], Iterable[tuple[str, np.ndarray]]],
    *,
    shard_bytes: int,
    what: str,
    form: str = safetensors.FORM,
) -> None:
    """Writes model.safetensors, or shards and their index. chunks(name) yields the values of the parts of a tensor, in order.

    form: `format` of the files' metadata.
    """
    sizes = {
        name: sum(
            kind.itemsize * int(np.prod(shape, dtype=np.int64)) for kind, shape in parts.values()
        )
        for name, parts in stored.items()
    }
    shards = split_shards(sizes, shard_bytes)
    names = (
        ["model.safetensors"]
        if len(shards) == 1
        else [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    )
    progress = Progress(what, sum(sizes.values()))
    for file_name, tensors in zip(names, shards):
        parts = {part: entry for name in tensors for part, entry in stored[name].items()}
        writer = safetensors.Writer(folder / file_name, parts, form)
        for name in tensors:
            for part, chunk in chunks(name):
                progress.add(writer.write(part, chunk))
        writer.close()
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(sizes.values())},
            "weight_map": {
                part: file_name
                for file_name, tensors in zip(names, shards)
                for name in tensors
                for part in stored[name]
            },
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def write_checksums(folder: pathlib.Path) -> None:
    """Writes SHA256SUMS, which `sha256sum -c SHA256SUMS` checks, of all files of the folder."""
    lines = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (folder / "SHA256SUMS").write_text("".join(lines))
