"""Rows of tokens for each pass of training. All that is drawn can be saved, so that a resumed run draws the same."""

import dataclasses

import numpy as np
import torch

from polysketch_tools.errors import ToolError
from polysketch_training.presets import Recipe
from polysketch_training.token_file import Tokens

_AT_DOCUMENT = 0.5  # share of the rows that start at the start of a document; the others start anywhere
_AT_ZERO = 0.7  # share of the rows that start at position 0; the others at offsets up to max_offset
_LEAST_OFFSET = 512


@dataclasses.dataclass
class Batch:
    tokens: torch.Tensor  # [rows, n] int64
    targets: torch.Tensor  # [rows, n]: the token after each
    starts: torch.Tensor  # [rows] bool: the row is a new sequence
    positions: torch.Tensor  # [rows]: position of its first token


class Batches:
    """An endless sequence of batches of one process.

    packed: every row of every batch is a new sequence. streamed: a row goes on where it was in the last batch, and starts
    anew with probability 1 / stream_chunks and at the end of the text.
    """

    def __init__(self, tokens: Tokens, recipe: Recipe, block: int, rank: int = 0):
        self._tokens, self._recipe, self._block = tokens, recipe, block
        if len(tokens.ids) < recipe.length + 1:
            raise ToolError(f"expected at least {recipe.length + 1} tokens of text (--length and one), found {len(tokens.ids)}")
        self._generators = [np.random.default_rng([recipe.seed, rank, row]) for row in range(recipe.batch)]
        self._cursors = np.full(recipe.batch, -1)  # -1: the row has not started
        self._positions = np.zeros(recipe.batch, np.int64)

    def next(self) -> Batch:
        length = self._recipe.length
        starts = np.array([self._starts_anew(row) for row in range(self._recipe.batch)])
        for row in np.flatnonzero(starts):
            self._start(row)
        rows = np.stack([self._tokens.ids[c : c + length + 1] for c in self._cursors]).astype(np.int64)
        positions = torch.from_numpy(self._positions.copy())
        self._cursors += length
        self._positions += length
        rows = torch.from_numpy(rows)
        return Batch(rows[:, :-1], rows[:, 1:], torch.from_numpy(starts), positions)

    def _starts_anew(self, row: int) -> bool:
        chance = self._generators[row].random()  # always drawn: what comes after does not depend on the text's end
        if self._recipe.sequences == "packed" or self._cursors[row] < 0:
            return True
        return chance < 1 / self._recipe.stream_chunks or self._cursors[row] + self._recipe.length >= len(self._tokens.ids)

    def _start(self, row: int) -> None:
        generator, last = self._generators[row], len(self._tokens.ids) - self._recipe.length - 1
        cursor = int(generator.integers(last + 1))
        documents = self._tokens.documents
        if len(documents) and generator.random() < _AT_DOCUMENT:
            cursor = min(int(documents[generator.integers(len(documents))]), last)
        self._cursors[row], self._positions[row] = cursor, self._offset(generator)

    def _offset(self, generator) -> int:
        """0, or a multiple of the block, its logarithm uniform: rows of a batch share their place within the block."""
        most = self._recipe.max_offset
        if most <= _LEAST_OFFSET or generator.random() < _AT_ZERO:
            return 0
        return int(2 ** generator.uniform(np.log2(_LEAST_OFFSET), np.log2(most))) // self._block * self._block

    def state(self) -> dict:
        return {
            "generators": [generator.bit_generator.state for generator in self._generators],
            "cursors": self._cursors.tolist(),
            "positions": self._positions.tolist(),
        }

    def restore(self, state: dict) -> None:
        for generator, saved in zip(self._generators, state["generators"], strict=True):
            generator.bit_generator.state = saved
        self._cursors, self._positions = np.array(state["cursors"]), np.array(state["positions"], np.int64)
