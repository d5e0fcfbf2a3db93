"""Trains a SentencePiece model as models/demo has one: BPE, byte fallback, text kept as it is, the newline a piece."""

import io
import os
import pathlib
import re
from collections.abc import Iterator

import sentencepiece

from polysketch_tools.errors import ToolError
from polysketch_training.disk import writing
from polysketch_training.text_files import read_pieces

# SentencePiece holds what it trains on in memory, about ten times over.
SAMPLE_BYTES = 64 << 20
_MAX_SENTENCE = 4000  # characters; longer lines are cut, as SentencePiece would skip them
_LIMIT = re.compile(r"set it to a value <= (\d+)")


def train_tokenizer(files: list[pathlib.Path], vocab_size: int, out: pathlib.Path) -> int:
    """Writes a tokenizer of at most `vocab_size` pieces; returns how many it has: a short text has fewer."""
    data, size = _train(files, vocab_size)
    with writing(out):
        out.write_bytes(data)
    return size


def _train(files, vocab_size: int) -> tuple[bytes, int]:
    try:
        return _train_size(files, vocab_size), vocab_size
    except RuntimeError as error:
        limit = _LIMIT.search(str(error))
        if limit is None:
            raise ToolError(f"the tokenizer cannot be trained with {vocab_size} pieces: {error}") from error
        return _train_size(files, int(limit[1])), int(limit[1])


def _train_size(files, vocab_size: int) -> bytes:
    model, errors = io.BytesIO(), []
    try:
        _call_trainer(_sentences(files, errors), model, vocab_size)
    except RuntimeError:
        # SentencePiece makes text of the exceptions of the iterator.
        if errors:
            raise errors[0] from None
        raise
    return model.getvalue()


def _call_trainer(sentences, model, vocab_size: int) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=sentences,
        model_writer=model,
        vocab_size=vocab_size,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=0.9995,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["\n"],
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        max_sentence_length=4 * _MAX_SENTENCE,
        num_threads=os.cpu_count(),
        minloglevel=2,
    )


def _sentences(files, errors: list) -> Iterator[str]:
    """Yields lines; of more text than SAMPLE_BYTES every k-th, spread over all files. A bad file is kept in `errors`."""
    try:
        yield from _sampled_lines(files)
    except (ToolError, OSError) as error:
        errors.append(error)
        raise


def _sampled_lines(files) -> Iterator[str]:
    stride = max(1, round(sum(file.stat().st_size for file in files) / SAMPLE_BYTES))
    number = 0
    for file in files:
        for piece in read_pieces(file):
            for line in piece.split("\n"):
                for begin in range(0, len(line), _MAX_SENTENCE):
                    number += 1
                    if number % stride == 0:
                        yield line[begin : begin + _MAX_SENTENCE]
