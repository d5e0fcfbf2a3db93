"""Writes a model folder, shard by shard. The folder appears whole or not at all."""

import pathlib
import shutil

import numpy as np

from polysketch_tools import calibration, hugging_face, quantize, safetensors
from polysketch_tools.errors import ToolError
from polysketch_tools.model_config import ModelConfig, tensor_shapes
from polysketch_tools.output_folder import (
    DEFAULT_SHARD_BYTES,
    atomic_folder,
    write_checksums,
    write_tensors,
)

STORAGE_DTYPES = ("f32", "bf16", "f16", "q8", "q4")  # storage of the tensors, as commands name it

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

    def chunks(name):
        if name in rounded:
            return zip((name, name + ".scale"), rounded[name])
        return _stored_chunks(name, shapes[name], forms[name], values)

    write_tensors(folder, stored, chunks, shard_bytes=shard_bytes, what=what)


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
