"""Checks a SentencePiece model against a config, for convert and make-random."""

import pathlib

import sentencepiece

from polysketch_tools.errors import ToolError
from polysketch_tools.file_kinds import SENTENCEPIECE, describe
from polysketch_tools.model_config import ModelConfig


def apply_tokenizer(config: ModelConfig, path: pathlib.Path, add_bos: bool | None) -> None:
    """Checks that the tokenizer fits the config and sets its BOS and EOS ids. add_bos None: true if the tokenizer has BOS."""
    try:
        tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError) as error:
        if not path.exists():
            raise ToolError(f"{path}: no such file or folder") from error
        found = describe(path)
        raise ToolError(
            f"{path}: expected a SentencePiece model, found {'damage' if found == SENTENCEPIECE else found}"
        ) from error
    if tokenizer.piece_size() != config.vocab_size:
        raise ToolError(
            f"{path}: expected {config.vocab_size} pieces (vocab_size), found {tokenizer.piece_size()}"
        )
    config.bos_id = tokenizer.bos_id()
    config.eos_id = tokenizer.eos_id()
    if add_bos and config.bos_id < 0:
        raise ToolError(f"{path}: --add-bos, but the tokenizer has no BOS piece")
    config.add_bos = config.bos_id >= 0 if add_bos is None else add_bos
