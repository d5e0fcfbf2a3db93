"""Reads the tensors of a file of torch.save, without running the code that a pickle may hold."""

import pathlib
import pickle

import numpy as np

from polysketch_tools.errors import ToolError
from polysketch_tools.file_kinds import describe


def load(path: pathlib.Path) -> dict[tuple[str, ...], object]:
    """Returns the torch tensors of a dict, and of dicts in it, by their keys (a tuple). Needs torch."""
    try:
        import torch
    except ImportError as error:
        raise ToolError(
            f"{path}: expected PyTorch in this Python, which reads {describe(path)}; found none. scripts/setup training"
            " installs it: .venv-training/bin/python -m polysketch_tools.convert"
        ) from error
    try:
        # weights_only: an unpickler that knows tensors and containers, and refuses everything else.
        tree = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ToolError(f"{path}: expected tensors of torch.save, found: {reason}") from error
    if not isinstance(tree, dict):
        raise ToolError(f"{path}: expected a dict of tensors, found {type(tree).__name__}")
    tensors = dict(_leaves(tree, ()))
    for keys, leaf in tensors.items():
        if not isinstance(leaf, torch.Tensor):
            raise ToolError(f"{path}: {'/'.join(keys)}: expected a tensor, found {type(leaf).__name__}")
    return tensors


def _leaves(tree: dict, parents: tuple[str, ...]):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*parents, str(key)))
        else:
            yield (*parents, str(key)), value


def values(tensor) -> np.ndarray:
    """Returns the values of a tensor; numpy has no bfloat16 of torch, and float32 holds each of its values."""
    tensor = tensor.detach()
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
