"""Synthetic tasks: rows of tokens that end with answers, which follow from the tokens before them."""

import dataclasses
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Task:
    """draw(generator, rows) returns tokens [rows, length]; the tokens [begin, end) of each span of `answers` are an answer."""

    vocab_size: int
    length: int
    answers: tuple[tuple[int, int], ...]
    draw: Callable[[np.random.Generator, int], np.ndarray]


def reversal(digits: int) -> Task:
    """Digits, a separator, and the digits in reverse order."""
    separator = 10

    def draw(generator, rows: int) -> np.ndarray:
        row = generator.integers(10, size=(rows, digits))
        return np.concatenate([row, np.full((rows, 1), separator), row[:, ::-1]], axis=1)

    return Task(separator + 1, 2 * digits + 1, ((digits + 1, 2 * digits + 1),), draw)


def selective_copying(symbols: int, copied: int, length: int) -> Task:
    """`length` tokens, of which `copied` at random places are symbols and the others noise; a separator; the symbols in order."""
    noise, separator = symbols, symbols + 1

    def draw(generator, rows: int) -> np.ndarray:
        tokens = np.full((rows, length + 1 + copied), noise)
        values = generator.integers(symbols, size=(rows, copied))
        places = np.sort(generator.random((rows, length)).argsort(axis=1)[:, :copied], axis=1)
        np.put_along_axis(tokens, places, values, axis=1)
        tokens[:, length], tokens[:, length + 1 :] = separator, values
        return tokens

    return Task(symbols + 2, length + 1 + copied, ((length + 1, length + 1 + copied),), draw)


def induction(symbols: int, length: int, repeated: int) -> Task:
    """`length` symbols, none twice; one of them again at random, and what followed it: the answer, `repeated` symbols."""

    def draw(generator, rows: int) -> np.ndarray:
        tokens = generator.random((rows, symbols)).argsort(axis=1)[:, :length]
        starts = generator.integers(length - repeated, size=(rows, 1))
        again = np.take_along_axis(tokens, starts + np.arange(repeated + 1), axis=1)
        return np.concatenate([tokens, again], axis=1)

    return Task(symbols, length + 1 + repeated, ((length + 1, length + 1 + repeated),), draw)


def recall(pairs: int, keys: int, values: int) -> Task:
    """`pairs` of a key and a value, no key twice; then each key again, in another order, with its value as the answer."""

    def draw(generator, rows: int) -> np.ndarray:
        of_row = generator.random((rows, keys)).argsort(axis=1)[:, :pairs]
        found = np.stack([of_row, keys + generator.integers(values, size=(rows, pairs))], axis=2)
        order = generator.random((rows, pairs)).argsort(axis=1)
        asked = np.take_along_axis(found, order[:, :, None], axis=1)
        return np.concatenate([found, asked], axis=1).reshape(rows, -1)

    return Task(keys + values, 4 * pairs, tuple((i, i + 1) for i in range(2 * pairs + 1, 4 * pairs, 2)), draw)


_TASKS = {task.__name__: task for task in (reversal, selective_copying, induction, recall)}


def make_task(name: str, sizes: dict) -> Task:
    return _TASKS[name](**sizes)
