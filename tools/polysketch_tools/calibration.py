"""Calibration: rounds the q4 matrices of a model for the activations that a sample text causes."""

import argparse
import pathlib

import numpy as np
import sentencepiece

from polysketch_tools import compensated_rounding, quantize
from polysketch_tools.errors import ToolError
from polysketch_tools.forward import Tensor, forward
from polysketch_tools.model_config import ModelConfig, tensor_shapes
from polysketch_tools.progress import Progress

# 14 passages of novels that appeared before 1923.
DEFAULT_TEXT = pathlib.Path(__file__).with_name("calibration.txt")

_TOKENS = 32768  # of the text that are read
_LONGEST = 2048  # tokens of a sequence
_FEWEST = 1024  # tokens below which a text says too little
_ROWS = 8192  # of inputs that are quantised at once

Quantized = dict[str, tuple[np.ndarray, np.ndarray]]


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--calibration",
        metavar="TEXT",
        help="UTF-8 text whose activations q4 is rounded for, `default` (passages of novels) or `none` (plain rounding)"
        " (default: default)",
    )


def check_option(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    if args.calibration is not None and args.dtype != "q4":
        parser.error("--calibration needs --dtype q4")


def text_of(args: argparse.Namespace) -> pathlib.Path | None:
    """Returns the file of --calibration, the default one without it or for `default`; None for plain rounding."""
    if args.dtype != "q4" or args.calibration == "none":
        return None
    return DEFAULT_TEXT if args.calibration in (None, "default") else pathlib.Path(args.calibration)


def read_text(text: pathlib.Path) -> str:
    try:
        return text.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ToolError(f"{text}: expected UTF-8 text: {error}") from error


def read_sequences(config: ModelConfig, tokenizer: pathlib.Path, text: pathlib.Path) -> np.ndarray:
    """Returns the tokens of a UTF-8 text as sequences [count, n]."""
    content = read_text(text)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer))
    return sequences(text, processor.encode(content), config.context_length)


def sequences(text: pathlib.Path, tokens: list[int], longest: int) -> np.ndarray:
    """Returns the first tokens of a text as sequences [count, n] of at most `longest`."""
    ids = np.array(tokens[:_TOKENS], np.int64)
    if len(ids) < _FEWEST:
        raise ToolError(f"{text}: expected at least {_FEWEST} tokens, found {len(ids)}")
    n = min(longest, _LONGEST, len(ids))
    return ids[: len(ids) // n * n].reshape(-1, n)


def calibrate(
    config: ModelConfig, forms: dict[str, str], tensor: Tensor, tokens: np.ndarray
) -> Quantized:
    """Returns integers and scales of the matrices whose form is Q4, as quantize.quantize does.

    Layers follow one another: a matrix is rounded for the inputs that the rounded matrices before it produce, quantised to
    8 bits as the server's products quantise them.
    """
    pass_ = _Pass(config, forms, tensor)
    forward(config, tokens, tensor, pass_.product)
    return pass_.rounded


class _Pass:
    def __init__(self, config: ModelConfig, forms: dict[str, str], tensor: Tensor):
        self.rounded: Quantized = {}
        self._forms, self._tensor = forms, tensor
        shapes = tensor_shapes(config)
        total = sum(4 * int(np.prod(shapes[name])) for name, form in forms.items() if form == "Q4")
        self._progress = Progress("calibrating", total)

    def product(self, name: str, x: np.ndarray) -> np.ndarray:
        """Rounds the matrix for inputs x [rows, in] and returns their product with the rounded matrix."""
        weights, form = self._tensor(name), self._forms[name]
        if form == "Q4":
            arrays = self.rounded[name] = compensated_rounding.round_q4(weights, moments(x))
            self._progress.add(4 * weights.size)
        else:
            arrays = quantize.quantize(form, name, weights)
        return product(x, quantize.dequantize(form, *arrays, len(weights)))


def product(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Returns the product of inputs [rows, in], quantised as the server does, and a matrix [in, out]."""
    out = np.empty((len(x), matrix.shape[1]), np.float32)
    for rows in chunks(len(x)):
        out[rows] = quantize.round_activations(x[rows]) @ matrix
    return out


def moments(x: np.ndarray) -> np.ndarray:
    """Returns X^T X of the inputs [rows, in] as the server quantises them."""
    total = np.zeros((x.shape[1], x.shape[1]))
    for rows in chunks(len(x)):
        inputs = quantize.round_activations(x[rows])
        total += inputs.T @ inputs
    return total


def chunks(count: int) -> list[slice]:
    return [slice(begin, begin + _ROWS) for begin in range(0, count, _ROWS)]
