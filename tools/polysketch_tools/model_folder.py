"""Writes a model folder, shard by shard. The folder appears whole or not at all."""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterator

import numpy as np

from polysketch_tools import calibration, hugging_face, quantize, safetensors
from polysketch_tools.errors import ToolError
from polysketch_tools.model_config import ModelConfig, tensor_shapes
from polysketch_tools.progress import Progress

STORAGE_DTYPES = ("f32", "bf16", "f16", "q8", "q4")  # storage of the tensors, as commands name it
DEFAULT_SHARD_BYTES = 4 << 30


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


_CHAT_TEMPLATE = "chat_template.jinja"  # beside the tokenizer, as Hugging Face keeps it


def write_model(
    out: pathlib.Path,
    config: ModelConfig,
    dtype: str,
    values,
    *,
    shard_bytes: int,
    tokenizer: pathlib.Path | None,
    overwrite: bool,
    tokens: np.ndarray | None = None,
) -> None:
    """Writes config, tensors and tokenizer to the folder `out`. values(name, shape) yields a tensor in row-major chunks.

    tokens [sequences, n]: what 4-bit matrices are calibrated with; None: they are rounded by themselves.
    """
    with atomic_folder(out, overwrite) as folder:
        forms = _forms(config, dtype)
        rounded = {} if tokens is None else _calibrate(config, forms, values, tokens)
        _write_tensors(folder, config, forms, values, rounded, shard_bytes, f"writing {out}")
        (folder / "config.json").write_text(config.to_json())
        if tokenizer is not None:
            shutil.copyfile(tokenizer, folder / "tokenizer.model")
            if (tokenizer.parent / _CHAT_TEMPLATE).is_file():
                shutil.copyfile(tokenizer.parent / _CHAT_TEMPLATE, folder / _CHAT_TEMPLATE)
            hugging_face.write_files(folder, tokenizer, config)
        write_checksums(folder)


def write_checksums(folder: pathlib.Path) -> None:
    """Writes SHA256SUMS, which `sha256sum -c SHA256SUMS` checks, of all files of the folder."""
    lines = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (folder / "SHA256SUMS").write_text("".join(lines))


def _forms(config: ModelConfig, dtype: str) -> dict[str, str]:
    """Returns the format of each tensor in a folder of `dtype`."""
    shapes = tensor_shapes(config)
    return {name: quantize.storage(dtype, name, shape) for name, shape in shapes.items()}


def _calibrate(
    config: ModelConfig, forms: dict[str, str], values, tokens: np.ndarray
) -> calibration.Quantized:
    shapes = tensor_shapes(config)

    def tensor(name: str) -> np.ndarray:
        whole = np.concatenate(list(values(name, shapes[name]))).reshape(shapes[name])
        _check_representable(name, whole, np.dtype(np.float32))
        return whole.astype(np.float32, copy=False)

    return calibration.calibrate(config, forms, tensor, tokens)


def _write_tensors(
    folder: pathlib.Path,
    config: ModelConfig,
    forms: dict[str, str],
    values,
    rounded: calibration.Quantized,
    shard_bytes: int,
    what: str,
) -> None:
    """rounded: integers and scales of matrices that are rounded already."""
    shapes = tensor_shapes(config)
    stored = {
        name: {
            part: (safetensors.DTYPES[kind], part_shape)
            for part, (kind, part_shape) in quantize.stored_tensors(
                forms[name], name, shape
            ).items()
        }
        for name, shape in shapes.items()
    }
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
        writer = safetensors.Writer(folder / file_name, parts)
        for name in tensors:
            if name in rounded:
                chunks = zip((name, name + ".scale"), rounded[name])
            else:
                chunks = _stored_chunks(name, shapes[name], forms[name], values)
            for part, chunk in chunks:
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


def _stored_chunks(name: str, shape: tuple[int, ...], form: str, values):
    """Yields name and values of each array that stores a tensor, in order."""
    if form not in ("Q8", "Q4"):
        for chunk in values(name, shape):
            _check_representable(name, chunk, safetensors.DTYPES[form])
            yield name, chunk
        return
    # A scale needs its whole column: one matrix is in memory at a time.
    whole = np.concatenate(list(values(name, shape))).reshape(shape)
    _check_representable(name, whole, np.dtype(np.float32))
    yield from zip((name, name + ".scale"), quantize.quantize(form, name, whole))


def _check_representable(name: str, chunk: np.ndarray, storage: np.dtype) -> None:
    if not np.isfinite(chunk).all():
        raise ToolError(f"tensor {name}: expected finite values, found NaN or infinity")
    if storage == np.float16 and np.abs(chunk).max(initial=0) > 65504:
        raise ToolError(f"tensor {name}: values beyond the range of f16; use f32 or bf16")
