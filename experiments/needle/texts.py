"""Texts with a fact, tokens between the fact and a question, and candidates for its answer."""

import dataclasses
import pathlib

import numpy as np
import sentencepiece

FACT = "The secret word is {}."
QUESTION = "The secret word is"
WORDS = ("river", "candle", "garden", "silver", "window", "winter", "butter", "soldier", "mountain", "letter")
_BEFORE = 256  # tokens of filler before the fact


@dataclasses.dataclass(frozen=True)
class Texts:
    """with_fact and without_fact end with the question; candidates: the tokens of each answer; right: the index of the fact's."""

    with_fact: list[int]
    without_fact: list[int]
    candidates: list[list[int]]
    right: int


def make_texts(tokenizer: pathlib.Path, filler: np.ndarray, depth: int, seed: int, candidates: int) -> Texts:
    """Draws the fact, and where in `filler` the text begins. depth: tokens between the fact and the question."""
    processor, generator = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer)), np.random.default_rng(seed)
    words = generator.permutation(WORDS)[:candidates]
    right = int(generator.integers(candidates))
    begin = int(generator.integers(max(1, len(filler) - depth - _BEFORE)))
    tokens = np.resize(filler[begin:], _BEFORE + depth).tolist()  # a short filler is repeated
    fact = processor.encode("\n" + FACT.format(words[right]) + "\n")
    question = processor.encode("\n" + QUESTION)
    return Texts(
        with_fact=tokens[:_BEFORE] + fact + tokens[_BEFORE:] + question,
        without_fact=tokens + question,
        candidates=[_after(processor, question, word) for word in words],
        right=right,
    )


def _after(processor, question: list[int], word: str) -> list[int]:
    """Returns the tokens of a word after the question."""
    whole = processor.encode(f"\n{QUESTION} {word}")
    if whole[: len(question)] != question:
        raise SystemExit(f"{word}: expected the tokens of the question and then its own, found others")
    return whole[len(question) :]
