"""Token ids of the text: what training reads, and what it never sees, in two parts."""

import dataclasses
import pathlib

import numpy as np

import polysketch_tools
from polysketch_tools.errors import ToolError
from polysketch_training.text_files import find_files, read_pieces

# Passages of novels that the tools calibrate with: the text of a run without --text.
DEFAULT_TEXT = pathlib.Path(polysketch_tools.__file__).parent / "calibration.txt"
_HELD_OUT = 10  # at least a tenth of each file


@dataclasses.dataclass
class Texts:
    """Flat arrays of int32. Each file gives its end to the parts that are held out."""

    train: np.ndarray
    sensitivity: np.ndarray  # held out: what chooses the full layers
    evaluation: np.ndarray  # held out, and chose nothing


def read_texts(paths: list[pathlib.Path], tokenizer, *, held_out: int) -> Texts:
    """held_out: tokens that each of the held-out parts needs. ToolError if training would have less than both."""
    files = find_files(paths) if paths else [DEFAULT_TEXT]
    ids = [_tokens(file, tokenizer) for file in files]
    total = sum(map(len, ids))
    share = max(1 / _HELD_OUT, 2 * held_out / max(total, 1))
    if share > 0.5:
        raise ToolError(
            f"{paths[0] if paths else DEFAULT_TEXT}: expected at least {4 * held_out} tokens of text, of which {2 * held_out} are held"
            f" out; found {total}. More --text, or fewer and shorter samples"
        )
    parts = ([], [], [])
    for one in ids:
        half = -(-int(len(one) * share * 1e6) // 2_000_000) + 1  # rounded up: the parts reach held_out
        half = min(half, len(one) // 4)
        for part, piece in zip(parts, np.split(one, [len(one) - 2 * half, len(one) - half])):
            part.append(piece)
    texts = Texts(*(np.concatenate(part) for part in parts))
    shortest = min(len(texts.sensitivity), len(texts.evaluation))
    if shortest < held_out:
        raise ToolError(f"{files[0]}: expected {held_out} tokens for each held-out part, found {shortest}; more --text, or longer files")
    return texts


def _tokens(file: pathlib.Path, tokenizer) -> np.ndarray:
    ids = [tokenizer.encode(piece, add_special_tokens=False) for piece in read_pieces(file)]
    return np.array([i for piece in ids for i in piece], np.int32)


def prefix_of(tokenizer) -> list[int]:
    """The ids that every sequence begins with: BOS, or none."""
    return list(tokenizer.encode(""))


def describe(paths: list[pathlib.Path]) -> list[list]:
    """Names and sizes, by which a resumed run knows its text."""
    files = find_files(paths) if paths else [DEFAULT_TEXT]
    return [[str(file.resolve()), file.stat().st_size] for file in files]
